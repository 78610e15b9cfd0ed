"""Which of a collective's rounds are extra."""

import torch

from comm_compress.encoded import ByteCount
from comm_compress.ledger import Collective, Ledger, Span


def test_the_rounds_with_the_fewest_bytes_are_the_extra_ones() -> None:
    collective = Collective(torch.device("cpu"))
    for size in (4, 1000, 8):
        collective.charge(ByteCount(values=size))
    assert collective.extra_rounds("reduce_scatter") == {1, 3}
    assert collective.extra_rounds("all_reduce") == {1}, "whose own rounds are two"
    collective.spans = [
        Span("encode", 0.0, 1.0, 0),
        Span("wire", 1.0, 1.5, 1),
        Span("wire", 2.0, 4.0, 2),
        Span("wire", 4.0, 4.25, 3),
        Span("decode", 5.0, 6.0, 0),
    ]
    ledger = Ledger()
    ledger.add("reduce_scatter", "unit", collective, 10, 4, None)
    totals = ledger.totals()
    assert (totals.extra_collectives, totals.extra_ms, totals.wire_ms) == (2, 750, 2750)
    assert (totals.encode_ms, totals.decode_ms) == (1000, 1000)


def test_a_single_round_is_never_extra() -> None:
    collective = Collective(torch.device("cpu"))
    collective.charge(ByteCount(values=4))
    assert collective.extra_rounds("all_gather") == set()
