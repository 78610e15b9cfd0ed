"""Answers to each request over virtual ranks, by hand."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch

from comm_compress.core.encoded import ByteCount, Encoded, Field, Layout, RaggedRow
from comm_compress.core.rounds import AllReduce, Exchange, Gather, Sum
from comm_compress.core.segments import segments_of
from comm_compress.drive import simulate

PAIR = Layout(Field("codes", torch.int8, 2, "values"))
CPU = torch.device("cpu")


def rows(*values: list[int]) -> Encoded:
    encoded = Encoded.empty(len(values), 2, PAIR, CPU)
    encoded["codes"][:] = torch.tensor(values, dtype=torch.int8)
    return encoded


def once(request: Any) -> Generator[Any, Any, Any]:
    return (yield request)


def test_an_exchange_brings_every_ranks_row_for_me() -> None:
    sent = [Exchange(rows([1, 2], [3, 4])), Exchange(rows([5, 6], [7, 8]))]
    outcome = simulate.lockstep([once(request) for request in sent])
    assert [answer["codes"].tolist() for answer in outcome.results] == [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]
    assert outcome.sent == [ByteCount(values=2)] * 2
    assert outcome.rounds == 1


def test_a_gather_brings_every_ranks_only_row() -> None:
    outcome = simulate.lockstep([once(Gather(rows([r, r]))) for r in range(3)])
    assert [answer["codes"].tolist() for answer in outcome.results] == [[[0, 0], [1, 1], [2, 2]]] * 3
    assert outcome.sent == [ByteCount(values=4)] * 3


def test_a_sum_is_one_row_in_the_codes_dtype() -> None:
    sent = [Sum(rows([1, -2], [3, 4]), torch.int8), Sum(rows([5, -6], [7, 8]), torch.int8)]
    outcome = simulate.lockstep([once(request) for request in sent])
    assert [answer["codes"].tolist() for answer in outcome.results] == [[[6, -8]], [[10, 12]]]
    nothing = Encoded(torch.empty(2, 0, dtype=torch.uint8), Layout(), 0)
    assert simulate.echo(Sum(nothing, torch.int32), 0, 2).num_rows == 1


def test_ragged_rows_keep_their_lengths() -> None:
    def message(*lengths: int) -> Encoded:
        return Encoded.ragged(
            [RaggedRow([torch.full((n,), n, dtype=torch.uint8)], ByteCount(values=n)) for n in lengths], 9
        )

    outcome = simulate.lockstep([once(Exchange(message(1, 2))), once(Exchange(message(3, 4)))])
    assert [answer.lengths for answer in outcome.results] == [(1, 3), (2, 4)]
    assert outcome.results[1].row(1).tolist() == [4] * 4
    assert outcome.results[0].n == 9
    assert outcome.sent == [ByteCount(values=2, metadata=8), ByteCount(values=3, metadata=8)]


@pytest.mark.parametrize(("op", "expected"), [("max", [3.0, 2.0]), ("sum", [4.0, -3.0])])
def test_an_all_reduce_is_elementwise(op: Any, expected: list[float]) -> None:
    tensors = torch.tensor([3.0, -5.0]), torch.tensor([1.0, 2.0])
    outcome = simulate.lockstep([once(AllReduce(tensor, op)) for tensor in tensors])
    assert [answer.tolist() for answer in outcome.results] == [expected] * 2


def test_one_rank_alone_is_answered_by_itself() -> None:
    outcome = simulate.lockstep([once(AllReduce(torch.ones(2), "sum"))])
    assert outcome.results[0].tolist() == [1, 1]
    assert outcome.sent == [ByteCount()]


def test_bytes_of_all_rounds_are_added() -> None:
    def twice() -> Generator[Any, Any, int]:
        yield AllReduce(torch.zeros(1), "max")
        yield Gather(rows([1, 1]))
        return 5

    outcome = simulate.lockstep([twice(), twice()])
    assert outcome.results == [5, 5]
    assert outcome.sent == [ByteCount(values=2, metadata=4)] * 2
    assert outcome.rounds == 2


def test_ranks_that_do_not_agree_are_a_mistake() -> None:
    def never() -> Generator[Any, Any, None]:
        return
        yield

    with pytest.raises(AssertionError, match="same number of rounds"):
        simulate.lockstep([never(), once(Gather(rows([1, 1])))])
    with pytest.raises(AssertionError, match="same request"):
        simulate.lockstep([once(AllReduce(torch.zeros(1), "max")), once(Gather(rows([1, 1])))])


def test_fresh_states_are_each_ranks_own_and_begun() -> None:
    layout = segments_of([("w", (4,))], 2)
    found = simulate.states(2, "unit", 7, layout)
    assert [(s.unit, s.rank, s.world, s.seed, s.segments, s.tick) for s in found] == [
        ("unit", 0, 2, 7, layout, 1),
        ("unit", 1, 2, 7, layout, 1),
    ]
