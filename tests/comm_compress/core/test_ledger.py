"""Which of a collective's rounds are extra."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from comm_compress.core.encoded import ByteCount
from comm_compress.core.ledger import NUMBERS, Collective, Ledger, Span, Totals


def test_the_rounds_with_the_fewest_bytes_are_the_extra_ones() -> None:
    collective = Collective(torch.device("cpu"))
    for size in (4, 1000, 8):
        collective.charge(ByteCount(values=size))
    assert collective.extra_rounds(1) == {1, 3}
    assert collective.extra_rounds(2) == {1}
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
    assert collective.extra_rounds(1) == set()


def charged(values: int, indices: int, metadata: int, messages: float) -> Collective:
    collective = Collective(torch.device("cpu"))
    collective.charge(ByteCount(values, indices, metadata), messages)
    return collective


def test_totals_are_kept_by_operation_and_unit() -> None:
    ledger = Ledger()
    ledger.add("reduce_scatter", "a", charged(5, 3, 2, 1.5), 10, 4, torch.tensor(True))
    ledger.add("reduce_scatter", "a", charged(50, 30, 20, 2), 7, 2, torch.tensor(False))
    ledger.add("reduce_scatter", "b", charged(1, 0, 0, 0), 1, 4, torch.tensor(False))
    ledger.add("all_gather", "a", charged(0, 1, 0, 0), 2, 4, None)
    mine = ledger.totals("reduce_scatter", "a")
    assert (mine.calls, mine.elements, mine.raw_bytes, mine.messages) == (2, 17, 54, 3.5)
    assert (mine.value_bytes, mine.index_bytes, mine.metadata_bytes, mine.sent_bytes) == (55, 33, 22, 110)
    assert mine.nonfinite_inputs == 1
    assert ledger.totals("reduce_scatter").nonfinite_inputs == 2
    assert ledger.totals("reduce_scatter").calls == 3
    assert ledger.totals(unit="a").calls == 3
    assert ledger.totals().sent_bytes == 112
    assert ledger.totals("all_reduce") == Totals()
    since = ledger.totals() - ledger.totals("all_gather")
    assert since == ledger.totals("reduce_scatter")


def test_counting_goes_on_from_a_saved_state() -> None:
    ledger, other = Ledger(), Ledger()
    ledger.add("reduce_scatter", "a/b", charged(5, 3, 2, 1), 10, 4, torch.tensor(False))
    other.add("all_gather", "gone", charged(5, 3, 2, 1), 10, 4, None)
    other.load_state_dict(ledger.state_dict())
    assert other.totals("all_gather") == Totals()
    other.add("reduce_scatter", "a/b", charged(5, 3, 2, 1), 10, 4, torch.tensor(True))
    assert other.totals("reduce_scatter", "a/b").index_bytes == 6
    assert other.totals().nonfinite_inputs == 1


@pytest.mark.parametrize("how", ["another operation", "a field too many", "a field too few"])
def test_what_no_ledger_gave_is_refused(how: str) -> None:
    ledger = Ledger()
    ledger.add("reduce_scatter", "a", charged(1, 1, 1, 1), 1, 4, None)
    state = ledger.state_dict()
    if how == "another operation":
        state["broadcast/a"] = state.pop("reduce_scatter/a")
    elif how == "a field too many":
        state["reduce_scatter/a"]["more"] = 1
    else:
        del state["reduce_scatter/a"]["calls"]
    with pytest.raises(ValueError, match="not a ledger's state"):
        Ledger().load_state_dict(state)


def test_what_is_left_to_stock_collectives_is_named_not_shown_as_nothing() -> None:
    ledger = Ledger(("all_gather",))
    collective = Collective(torch.device("cpu"))
    collective.charge(ByteCount(values=1000))
    ledger.add("reduce_scatter", "unit", collective, 1000, 4, None)
    assert ledger.totals().uncounted == ledger.totals("all_gather").uncounted == ("all_gather",)
    assert ledger.totals("reduce_scatter").uncounted == ()
    assert "uncounted=('all_gather',)" in str(ledger.totals())
    assert (ledger.totals() + ledger.totals()).uncounted == (ledger.totals() - Totals()).uncounted == ("all_gather",)
    assert ledger.summary().splitlines() == [
        "all_gather: stock collectives, not counted",
        "reduce_scatter: 1 calls, 0.001 MB sent (25.0% of uncompressed)",
    ]
    again = Ledger(("all_gather",))
    again.load_state_dict(ledger.state_dict())
    assert again.totals() == replace(ledger.totals(), uncounted=())
    assert again.totals().uncounted == ("all_gather",)


GOOD = dict.fromkeys(NUMBERS, 1)


@pytest.mark.parametrize(
    ("key", "entry", "why"),
    [
        ("reduce_scatter/unit", {**GOOD, "strange": 1}, "strange"),
        ("reduce_scatter/unit", {k: v for k, v in GOOD.items() if k != "calls"}, "calls"),
        ("reduce_scatter/unit", {**GOOD, "calls": "many"}, "'many'"),
        ("reduce_scatter/unit", {**GOOD, "calls": -1}, "-1"),
        ("reduce_scatter/unit", {**GOOD, "wire_ms": float("nan")}, "nan"),
        ("reduce_scatter/unit", 3, "3"),
        ("reduce_scatter", GOOD, "OPERATION/UNIT"),
        ("broadcast/unit", GOOD, "OPERATION/UNIT"),
    ],
)
def test_what_no_ledger_has_written_is_refused_and_changes_nothing(key: str, entry: Any, why: str) -> None:
    ledger = Ledger()
    ledger.load_state_dict({"all_gather/unit": GOOD})
    before = ledger.state_dict()
    with pytest.raises(ValueError, match="not a ledger's state") as refusal:
        ledger.load_state_dict({"all_gather/unit": GOOD, key: entry})
    assert why in str(refusal.value)
    assert ledger.state_dict() == before
