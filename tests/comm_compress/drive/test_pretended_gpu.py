"""What our transport sends for tensors of a GPU, on a pretended one: the numbers of a CPU's tensors come out.

The peer is this rank's twin (`experiments.gpu_day.loopback`), so both ways through the transport must give the same:
messages in pairs on the CPU, and torch's own collectives on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from comm_compress import conformance
from comm_compress.core.ledger import Collective
from comm_compress.core.rounds import Reduced
from comm_compress.core.workspace import Workspace
from comm_compress.drive import transport
from experiments.gpu_day import loopback
from tests.comm_compress.pretended import OnGpu, gpu
from tests.comm_compress.table import IDS, TABLE, build

N = 300
WITHOUT_VECTORS = 289  # a matrix fills such rows
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup]:
    with loopback.joined():
        yield dist.group.WORLD


def ran(rounds: Any, device: torch.device, group: dist.ProcessGroup) -> tuple[Tensor, Collective]:
    collective = Collective(device)
    result = transport.run(rounds, group, collective, Workspace())
    return result.total if isinstance(result, Reduced) else result, collective


@pytest.mark.parametrize(("name", "config"), TABLE, ids=IDS)
def test_a_gpus_tensors_arrive_as_a_cpus(name: str, config: dict[str, Any], group: dist.ProcessGroup) -> None:
    n = WITHOUT_VECTORS if name == "owners" else N  # the twin returns what was for rank 1, who then owns as much
    compressor, rows = build(name, config), conformance.gradient(1, 2 * n)[0].view(2, n)
    kinds = ["reduce_scatter"] * compressor.traits.for_gradients + ["all_gather"] * compressor.traits.for_parameters
    with gpu() as there:
        for kind in kinds:
            given = rows if kind == "reduce_scatter" else rows[0].contiguous()
            here, on_gpu = given.clone(), there(given)
            cpu, gpus = conformance.states(2, n)[0], conformance.states(2, n)[0]
            expected, sent = ran(getattr(compressor, kind)(here, cpu), here.device, group)
            got, as_much = ran(getattr(compressor, kind)(on_gpu, gpus), on_gpu.device, group)
            assert isinstance(got, OnGpu)
            limit = 1e-6 * float(expected.abs().max())
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=limit)
            assert (as_much.bytes, as_much.rounds) == (sent.bytes, sent.rounds)
