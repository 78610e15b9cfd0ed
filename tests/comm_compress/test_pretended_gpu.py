"""Every method on a pretended GPU: tensors on the right device, and the numbers of the CPU (`tests...pretended`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import comm_compress as cc
from comm_compress import conformance
from comm_compress.core.compressor import Codec
from comm_compress.drive import simulate
from tests.comm_compress.pretended import OnGpu, gpu
from tests.comm_compress.table import IDS, TABLE, build

N = 300
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one: test_gpu")


@pytest.mark.parametrize(("name", "config"), TABLE, ids=IDS)
def test_every_method_keeps_to_its_tensors_device(name: str, config: dict[str, Any]) -> None:
    inputs, compressor = conformance.gradient(2, N), build(name, config)
    with gpu() as there:
        if compressor.traits.for_gradients:
            on_cpu, on_gpu = conformance.states(2, N), conformance.states(2, N)
            for _ in range(2):  # the second one goes on from what the first one left
                for state in (*on_cpu, *on_gpu):
                    state.begin()
                expected = simulate.reduce_scatter(compressor, [x.clone() for x in inputs], on_cpu)
                got = simulate.reduce_scatter(compressor, [there(x) for x in inputs], on_gpu)
                for a, b in zip(expected, got, strict=True):
                    assert isinstance(b.total, OnGpu)
                    limit = 1e-6 * float(a.total.abs().max())
                    torch.testing.assert_close(b.total.cpu(), a.total, rtol=1e-5, atol=limit)
        if compressor.traits.for_parameters:
            rows = [x[0] for x in inputs]
            expected_rows = simulate.all_gather(compressor, rows, conformance.states(2, N))
            got_rows = simulate.all_gather(compressor, [there(x) for x in rows], conformance.states(2, N))
            for a_row, b_row in zip(expected_rows, got_rows, strict=True):
                assert isinstance(b_row, OnGpu)
                torch.testing.assert_close(b_row.cpu(), a_row, rtol=1e-5, atol=1e-6)
        if isinstance(compressor, Codec):  # the same bytes
            cpu_bytes = compressor.encode(inputs[0].clone(), conformance.states(2, N)[0])
            gpu_bytes = compressor.encode(there(inputs[0]), conformance.states(2, N)[0])
            assert gpu_bytes.lengths == cpu_bytes.lengths
            assert torch.equal(gpu_bytes.buffer.cpu(), cpu_bytes.buffer)


@pytest.mark.parametrize("method", ["identity", "bf16", "int8", "int4 hadamard", "topk", "qsgd", "signsgd", "nc"])
def test_a_reduce_scatter_of_a_fixed_size_never_waits_for_the_gpu(method: str) -> None:
    compressor, states = cc.make(method), conformance.states(3, N)
    with gpu() as there:
        for _ in range(2):
            for state in states:
                state.begin()
            simulate.reduce_scatter(compressor, [there(x) for x in conformance.gradient(3, N)], states)
        assert there.waits == 0


@pytest.mark.parametrize(
    ("method", "changed", "unchanged"),
    [
        ("identity", 0, 0),
        ("int8", 0, 0),
        ("delta", 2, 1),  # is it what was sent last, and is the change finite? However many ranks there are
        ("delta mode=grid", 3 + 2 * 4, 1),  # and two streams of each other rank, with the reference's kernels
        ("delta mode=grid moves=4", 3 + 2 * 4, 1),  # what is rounded at random is not asked
    ],
)
def test_how_often_a_gather_waits_for_the_gpu(method: str, changed: int, unchanged: int) -> None:
    compressor, states = cc.make(method), conformance.states(3, N)
    rows = [x[0] for x in conformance.gradient(3, N)]
    with gpu() as there:
        for factor in (1.0, 1.01):
            simulate.all_gather(compressor, [there(factor * x) for x in rows], states)
        counts = []
        for factor in (1.02, 1.02):
            before = there.waits
            simulate.all_gather(compressor, [there(factor * x) for x in rows], states)
            counts.append((there.waits - before) / len(rows))
    assert counts == [changed, unchanged]


def test_a_mixture_of_devices_is_refused_as_cuda_refuses_it() -> None:
    with gpu() as there:
        x = there(torch.arange(4.0))
        assert (x.device.type, x.is_cuda) == ("cuda", True)
        assert (x + 1).cpu().tolist() == [1, 2, 3, 4]
        assert torch.zeros(2, device="cuda").is_cuda
        with pytest.raises(RuntimeError, match="same device"):
            _ = x + torch.arange(4.0)
        with pytest.raises((TypeError, RuntimeError)):
            x.numpy()
