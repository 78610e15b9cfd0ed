"""What each request puts on the wire, and in how many messages, counted by hand."""

from __future__ import annotations

import pytest
import torch

from comm_compress.core.encoded import ByteCount, Encoded, Field, Layout, RaggedRow
from comm_compress.core.rounds import AllReduce, Exchange, Gather, Sum, messages_by, ring_messages, sent_by

WORLD = 3
LAYOUT = Layout(Field("codes", torch.uint8, 6, "values"), Field("places", torch.uint8, 2, "indices"))
PER_ROW = ByteCount(values=6, indices=2)


def equal_rows(number: int) -> Encoded:
    return Encoded.empty(number, 6, LAYOUT, torch.device("cpu"))


def ragged_rows(*lengths: int) -> Encoded:
    rows = [RaggedRow([torch.zeros(n, dtype=torch.uint8)], ByteCount(indices=n)) for n in lengths]
    return Encoded.ragged(rows, 6)


@pytest.mark.parametrize("request_", [Exchange(equal_rows(WORLD)), Sum(equal_rows(WORLD), torch.int8)])
def test_an_exchange_sends_a_row_to_each_other_rank(request_: Exchange | Sum) -> None:
    for rank in range(WORLD):
        assert sent_by(request_, rank, WORLD) == PER_ROW.times(2)
        assert messages_by(request_, rank, WORLD) == 2


def test_a_gather_sends_its_one_row_to_each_other_rank() -> None:
    request = Gather(equal_rows(1))
    assert sent_by(request, 2, WORLD) == PER_ROW.times(2)
    assert messages_by(request, 2, WORLD) == 2
    assert sent_by(request, 0, 1) == ByteCount()
    assert messages_by(request, 0, 1) == 0


def test_ragged_rows_are_announced_by_eight_bytes_each() -> None:
    request = Exchange(ragged_rows(5, 0, 7))
    assert [sent_by(request, rank, WORLD) for rank in range(WORLD)] == [
        ByteCount(indices=7, metadata=16),  # rows 1 and 2
        ByteCount(indices=12, metadata=16),
        ByteCount(indices=5, metadata=16),
    ]
    gathered = Gather(ragged_rows(5))
    assert sent_by(gathered, 1, WORLD) == ByteCount(indices=10, metadata=16)
    assert messages_by(gathered, 1, WORLD) == 2 + 2


def test_a_message_of_no_bytes_is_none() -> None:
    request = Exchange(ragged_rows(5, 0, 7))
    assert [messages_by(request, rank, WORLD) for rank in range(WORLD)] == [2 + 1, 2 + 2, 2 + 1]
    empty = Encoded(torch.empty(WORLD, 0, dtype=torch.uint8), Layout(), 0)
    assert messages_by(Exchange(empty), 0, WORLD) == 0
    one = Layout(Field("codes", torch.uint8, 1, "values"))
    single = Encoded.empty(WORLD, 1, one, torch.device("cpu"))
    assert messages_by(Exchange(single), 0, WORLD) == 2, "one byte is a message"


def test_an_all_reduce_is_a_ring_over_chunks() -> None:
    request = AllReduce(torch.zeros(10), "sum")  # 40 bytes in 3 chunks of 14
    assert sent_by(request, 0, WORLD) == ByteCount(metadata=2 * 2 * 14)
    assert sent_by(AllReduce(torch.zeros(10), "max", "values"), 0, WORLD) == ByteCount(values=56)
    assert messages_by(request, 0, WORLD) == ring_messages(40, 4, WORLD)


def test_the_rings_messages() -> None:
    # parts of ceil(40 / 6 / 4) * 4 = 8 bytes: 5 of them, each sent by every rank but one in each half
    assert ring_messages(40, 4, WORLD) == pytest.approx(2 * 2 * 5 / 3)
    assert ring_messages(4, 4, 2) == 1, "one part: one message of one rank in each half, over two ranks"
    assert ring_messages(0, 4, WORLD) == 0
