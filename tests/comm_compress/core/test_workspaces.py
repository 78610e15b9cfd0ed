"""No method may remember memory that belongs to one collective only."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from comm_compress import conformance
from comm_compress.core.ledger import Collective
from comm_compress.core.workspace import Workspace, WorkspacePool
from comm_compress.drive import transport
from tests.comm_compress.table import TABLE, build
from tests.distributed import run_ranks

STEPS, POISON = 5, 0xFF  # all ones: NaN in every float dtype, -1 in every integer


def _totals(name: str, config: dict[str, Any], inputs: list[list[Tensor]], workspace: Workspace | None) -> list[Tensor]:
    """This rank's results, step after step; between them everything in ``workspace`` turns into poison."""
    compressor, rank, group = build(name, config), dist.get_rank(), dist.group.WORLD
    assert group is not None
    n = inputs[0][0].shape[1]
    state, results = conformance.states(len(inputs[0]), n)[rank], []
    for ranks in inputs:
        rows, collective = ranks[rank].clone(), Collective(torch.device("cpu"))
        output = torch.empty(n if compressor.traits.for_gradients else len(ranks) * n) if workspace else None
        state.begin(torch.isfinite(rows).all(), output, workspace)
        if compressor.traits.for_gradients:
            result = transport.run(compressor.reduce_scatter(rows, state), group, collective, workspace).total
        else:
            result = transport.run(compressor.all_gather(rows[0], state), group, collective, workspace)
        results.append(result.float().clone())
        state.end()
        if workspace is not None:
            for buffer in workspace._buffers.values():
                buffer.fill_(POISON)
    return results


def _differing(inputs: list[list[Tensor]]) -> tuple[list[str], int]:
    differing, workspace = [], Workspace()
    for name, config in TABLE:
        fresh, reused = (_totals(name, config, inputs, w) for w in (None, workspace))
        if not all(torch.equal(a, b) for a, b in zip(fresh, reused, strict=True)):
            differing.append(f"{name} {config}")
    return differing, workspace.num_bytes


def test_reused_memory_changes_no_number_of_any_method() -> None:
    inputs = [conformance.gradient(3, 333, step) for step in range(STEPS)]
    for differing, held in run_ranks(3, _differing, inputs):
        assert differing == []
        assert held > 0


def test_collectives_at_the_same_time_have_a_workspace_each() -> None:
    pool, cpu = WorkspacePool(), torch.device("cpu")
    first, second = pool.acquire(cpu), pool.acquire(cpu)
    assert first is not second
    first.take("message", (10, 4), torch.float32, cpu)
    assert pool.num_bytes == 160
    pool.release(first)
    assert pool.acquire(cpu) is first
