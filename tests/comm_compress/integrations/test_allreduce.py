"""The rounds of an all-reduce over virtual ranks, by hand, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from comm_compress.conformance import gradient, segments
from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import ByteCount
from comm_compress.core.ledger import Ledger
from comm_compress.core.segments import Segment, segments_of
from comm_compress.core.state import State
from comm_compress.core.workspace import WorkspacePool
from comm_compress.drive import simulate
from comm_compress.integrations import allreduce
from comm_compress.methods.identity import UNCOMPRESSED, Identity, IdentityConfig
from comm_compress.wrappers.error_feedback import ErrorFeedback
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
    allreduce.check("all_reduce", build("topk", {}), build("topk", {}), 4)
    many = Identity(IdentityConfig())
    many.name, many.traits = "few", replace(many.traits, max_ranks=4)
    allreduce.check("all_reduce", many, many, 4)
    for reduce, gather, ranks, words in (
        (build("delta", {}), None, 2, "all_reduce: delta is for parameters"),
        (
            build("int8", {}),
            build("powersgd", {}),
            2,
            "gather: powersgd with error feedback does not send",
        ),
        (build("int8", {}), build("topk", {"error_feedback": False}), 2, "or one with error feedback"),
        (many, None, 5, "at most 4 ranks, this unit has 5"),
        (build("int8", {}), many, 5, "at most 4 ranks, this unit has 5"),
    ):
        with pytest.raises(ValueError, match=words):
            allreduce.check("all_reduce", reduce, gather, ranks)
    with pytest.raises(ValueError, match=r"^all_gather: powersgd"):
        allreduce.check("compressor", build("int8", {}), build("powersgd", {}), 2)
    with pytest.raises(ValueError, match=r"^all_gather: topk with error_feedback is for gradients only"):
        allreduce.check_gather("all_gather", build("topk", {}))  # of parameters


def _all_reduced(states: list[State], inputs: list[Tensor], reduce: Compressor, gather: Compressor) -> list[Tensor]:
    for rows, state in zip(inputs, states, strict=True):
        state.begin(reduce.mark(rows))
    rounds = [allreduce.all_reduce(x, reduce, gather, s, WORLD) for x, s in zip(inputs, states, strict=True)]
    return simulate.lockstep(rounds).results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("feedback", [{}, {"dtype": "bf16"}, {"dtype": "int8"}], ids=str)
@pytest.mark.parametrize("method", ["topk", "signsgd", "ecsq", "int4", "binned"])
def test_what_a_mean_loses_on_its_way_back_waits_with_the_rank_that_summed_it(
    method: str, feedback: dict[str, Any], dtype: torch.dtype
) -> None:
    """Everything that came back, and what waits, are all the means (DoubleSqueeze), and all ranks have the same."""
    n = 300
    states = simulate.states(WORLD, "unit", 0, segments(WORLD, n))
    gather = build(method, {"error_feedback": feedback})
    assert isinstance(gather, ErrorFeedback)
    means, came = torch.zeros(WORLD, n, dtype=torch.float64), torch.zeros(WORLD, n, dtype=torch.float64)
    for step in range(5):
        inputs = [rows.to(dtype) for rows in gradient(WORLD, n, step)]
        results = _all_reduced(states, [rows.clone() for rows in inputs], UNCOMPRESSED, gather)
        assert all(torch.equal(result, results[0]) for result in results)
        means += (torch.stack(inputs).float().sum(0) / WORLD).to(dtype).double()
        came += results[0].double()
    waiting = torch.cat([w for s in states if (w := gather.residual(s.child("gather"))) is not None]).double()
    assert waiting.shape == means.shape
    assert float((means - came).abs().max()) > 1e-3, "something waits"
    rounding = 5 * {"bf16": 2**-8, "int8": 2**-7}.get(str(feedback.get("dtype")), 2**-20)
    rounding += 2**-6 * (dtype == torch.bfloat16)
    assert float((came + waiting - means).abs().max()) <= rounding * float(means.abs().max())


def test_a_nan_of_one_rank_stays_out_of_what_waits_on_all() -> None:
    n, gather = 60, build("topk", {"ratio": 0.1})
    states = simulate.states(WORLD, "unit", 0, segments(WORLD, n))
    _all_reduced(states, gradient(WORLD, n, 0), UNCOMPRESSED, gather)
    before = [state.state_dict() for state in states]
    inputs = gradient(WORLD, n, 1)
    inputs[1][2, 5] = torch.nan
    assert all(not bool(torch.isfinite(result).all()) for result in _all_reduced(states, inputs, UNCOMPRESSED, gather))
    for state, earlier in zip(states, before, strict=True):
        assert torch.equal(state.state_dict()["gather/residual"], earlier["gather/residual"])
