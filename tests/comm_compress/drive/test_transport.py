"""A collective's rounds over real ranks: answers, bytes, rounds and messages, as `simulate` and `rounds` have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import torch
import torch.distributed as dist

from comm_compress.core.encoded import ByteCount, Encoded, Field, Layout, RaggedRow
from comm_compress.core.ledger import Collective
from comm_compress.core.rounds import AllReduce, Exchange, ExchangeParts, Gather, GatherParts, Request, Sum, messages_by
from comm_compress.core.workspace import Workspace
from comm_compress.drive import simulate, transport
from tests.distributed import run_ranks

WORLD = 3
LAYOUT = Layout(Field("codes", torch.int16, 3, "values"))


def rows(rank: int, number: int) -> Encoded:
    encoded = Encoded.empty(number, 3, LAYOUT, torch.device("cpu"))
    encoded["codes"][:] = torch.arange(3 * number, dtype=torch.int16).view(number, 3) + 100 * rank
    return encoded


def ragged(rank: int, number: int) -> Encoded:
    """Row d of rank r has r + d bytes: one has none."""
    parts = [torch.full((rank + d,), 10 * rank + d, dtype=torch.uint8) for d in range(number)]
    return Encoded.ragged([RaggedRow([part], ByteCount(values=part.numel())) for part in parts], 5)


def part(rank: int, size: int) -> Encoded:
    """One row of ``size`` bytes: rank 0 has none."""
    layout = Layout(Field("codes", torch.uint8, size, "values"))
    return Encoded(torch.full((1, size), 7 * rank + size, dtype=torch.uint8), layout, size)


def requests(rank: int) -> list[Request]:
    """One of each kind, in an order that shows whether one's memory is another's."""
    return [
        AllReduce(torch.tensor([1.0, -2.0]) * (rank + 1), "max"),
        Exchange(rows(rank, WORLD)),
        Gather(rows(rank, 1)),
        Sum(rows(rank, WORLD), torch.int16),
        Exchange(ragged(rank, WORLD)),
        Gather(ragged(rank, 1)),
        AllReduce(torch.tensor([1, 2]) + rank, "sum"),
        Sum(Encoded(torch.empty(WORLD, 0, dtype=torch.uint8), Layout(), 0), torch.int32),
        Gather(rows(rank, 1), torch.empty(WORLD, 3, dtype=torch.int16)),
        ExchangeParts(tuple(part(rank, 3 * to) for to in range(WORLD))),
        GatherParts(part(rank, 5 * rank), tuple(5 * r for r in range(WORLD))),
    ]


def everything(rank: int) -> Generator[Request, Any, list[Any]]:
    """Plain values of every answer, read when all rounds are over."""
    answers = []
    for request in requests(rank):
        answers.append((yield request))  # noqa: PERF401 (a generator's own yields)
    return [plain(answer) for answer in answers]


def plain(answer: Any) -> Any:
    if isinstance(answer, Encoded):
        return [answer.row(r).tolist() for r in range(answer.num_rows)], answer.lengths, answer.n
    return [row.tolist() for row in answer] if isinstance(answer, list) else answer.tolist()


def _real() -> tuple[list[Any], tuple[int, ...], int, float, Counter[str]]:
    group, collective = dist.group.WORLD, Collective(torch.device("cpu"))
    assert group is not None
    answers = transport.run(everything(dist.get_rank()), group, collective, Workspace())
    parts = Counter(span.part for span in collective.spans)
    return answers, tuple(collective.bytes), collective.rounds, collective.messages, parts


def test_real_ranks_get_the_answers_of_virtual_ones_and_send_their_bytes() -> None:
    virtual = simulate.lockstep([everything(rank) for rank in range(WORLD)])
    for rank, (answers, sent, rounds, messages, parts) in enumerate(run_ranks(WORLD, _real)):
        assert answers == virtual.results[rank]
        assert ByteCount(*sent) == virtual.sent[rank]
        assert rounds == virtual.rounds == len(requests(rank))
        assert messages == sum(messages_by(request, rank, WORLD) for request in requests(rank))
        assert parts == {"encode": rounds, "wire": 2 * rounds, "decode": 1}, "each posted, then waited for"


def _into() -> bool:
    """A gather's rows are received where the caller wants them, its own among them."""
    group = dist.group.WORLD
    assert group is not None
    place = torch.zeros(WORLD, 3, dtype=torch.int16)

    def rounds() -> Generator[Request, Any, Encoded]:
        received: Encoded = yield Gather(rows(dist.get_rank(), 1), place)
        return received

    received = transport.run(rounds(), group, Collective(torch.device("cpu")))
    return received.buffer.data_ptr() == place.data_ptr() and place[:, 0].tolist() == [0, 100, 200]


def test_rows_may_be_received_in_the_callers_memory() -> None:
    assert run_ranks(WORLD, _into) == [True] * WORLD


def _exact() -> list[list[float]]:
    group, rank = dist.group.WORLD, dist.get_rank()
    assert group is not None
    whole = torch.arange(6, dtype=torch.bfloat16).view(WORLD, 2) + rank
    total = transport.exact_sum(whole, group)
    assert total.dtype == torch.float32
    return [total.tolist(), transport.exact_sum(torch.empty(WORLD, 0), group).tolist()]


def test_the_exact_sum_is_float32_of_this_ranks_row() -> None:
    for rank, (total, nothing) in enumerate(run_ranks(WORLD, _exact)):
        assert total == [3 * (2 * rank) + 3, 3 * (2 * rank + 1) + 3]
        assert nothing == []
