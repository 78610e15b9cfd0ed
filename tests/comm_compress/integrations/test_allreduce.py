"""The rounds of an all-reduce over virtual ranks, by hand, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from comm_compress.core.encoded import ByteCount
from comm_compress.core.ledger import Ledger
from comm_compress.core.segments import Segment, segments_of
from comm_compress.core.state import State
from comm_compress.core.workspace import WorkspacePool
from comm_compress.drive import simulate
from comm_compress.integrations import allreduce
from comm_compress.methods.identity import UNCOMPRESSED, Identity, IdentityConfig
from tests.comm_compress.table import build
from tests.distributed import run_ranks

WORLD, N = 3, 4
ROWS = [torch.arange(12.0).view(WORLD, N) * (rank + 1) for rank in range(WORLD)]  # sum: 6 times the first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_everyone_gets_the_quotient_of_the_sum_in_the_dtype_of_the_rows(dtype: torch.dtype) -> None:
    states = simulate.states(WORLD, "unit", 0, segments_of([("w", (12,))], WORLD))
    rounds = [
        allreduce.all_reduce(rows.to(dtype), UNCOMPRESSED, UNCOMPRESSED, state, 3.0)
        for rows, state in zip(ROWS, states, strict=True)
    ]
    outcome = simulate.lockstep(rounds)
    for result in outcome.results:
        assert result.dtype == dtype
        assert torch.equal(result, (2 * ROWS[0]).to(dtype))
    half = (WORLD - 1) * N * dtype.itemsize
    assert outcome.sent == [ByteCount(values=2 * half)] * WORLD, "two halves of one row to each other rank"
    assert outcome.rounds == 2
    assert [s.segments for s in states[0].with_children()] == [states[0].segments] * 2


def _gradients() -> tuple[list[float], float, int, int, bool]:
    """What a vector and a number become, elements and bytes in the ledger, and whether all memory was given back."""
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    ledger, workspaces = Ledger(), WorkspacePool()
    state = State("bucket", rank, 2)
    vector, number = torch.arange(3.0) + rank, torch.tensor(5.0 + rank)
    reduction = allreduce.GradientAllReduce(state, UNCOMPRESSED, None, ledger, workspaces)
    reduction([("vector", vector), ("number", number)], "bucket", group, 2)
    held = workspaces.num_bytes
    state.scratch("afterwards", (held,), torch.uint8, torch.device("cpu"))
    totals = ledger.totals("all_reduce", "bucket")
    return vector.tolist(), float(number), totals.elements, totals.raw_bytes, workspaces.num_bytes == held


def test_gradients_of_any_shape_become_their_mean_in_place() -> None:
    # two ranks: a row holds two of the vector's three elements (one of them padding) and one for the number
    assert run_ranks(2, _gradients) == [([0.5, 1.5, 2.5], 5.5, 2 * 3, 2 * 3 * 4, True)] * 2


def test_parameters_that_lie_in_part_in_some_columns_are_not_known_there() -> None:
    a, b = Segment("a", (4,), 0, 4), Segment("b", (2,), 4, 6)
    assert allreduce._segments_within([a, b], [(0, 4)]) == (a,)
    assert allreduce._segments_within([a, b], [(4, 6)]) == (Segment("b", (2,), 0, 2),)
    assert allreduce._segments_within([a, b], [(1, 6)]) == ()


def test_what_cannot_make_an_all_reduce_is_refused() -> None:
    allreduce.check("all_reduce", build("topk", {}), None, 4)
    allreduce.check("all_reduce", build("topk", {}), build("int8", {}), 4)
    many = Identity(IdentityConfig())
    many.name, many.traits = "few", replace(many.traits, max_ranks=4)
    allreduce.check("all_reduce", many, many, 4)
    for reduce, gather, ranks, words in (
        (build("delta", {}), None, 2, "all_reduce: delta is for parameters"),
        (build("int8", {}), build("topk", {}), 2, "all_reduce's gather: topk with error_feedback"),
        (build("int8", {}), build("topk", {"error_feedback": False}), 2, "does not bring every element back"),
        (many, None, 5, "at most 4 ranks, this unit has 5"),
        (build("int8", {}), many, 5, "at most 4 ranks, this unit has 5"),
    ):
        with pytest.raises(ValueError, match=words):
            allreduce.check("all_reduce", reduce, gather, ranks)
    with pytest.raises(ValueError, match=r"^all_gather: topk"):
        allreduce.check("compressor", build("int8", {}), build("topk", {}), 2)
