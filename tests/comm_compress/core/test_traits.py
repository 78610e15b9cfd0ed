"""What a method says of itself unless it says otherwise, and what several together may say."""

from __future__ import annotations

import dataclasses

import pytest

from comm_compress.core.traits import Traits, combine
from tests.comm_compress.table import build

WHAT_ALL_MAY = ("unbiased", "lossless", "for_gradients", "for_parameters", "for_activations", "additive")
WHAT_ANY_NEEDS = ("sparse", "needs_segments")


def test_a_method_that_says_nothing_claims_nothing() -> None:
    assert [name for name, value in vars(Traits()).items() if value is True] == ["for_gradients", "additive"]


@pytest.mark.parametrize("name", WHAT_ALL_MAY)
def test_together_they_may_what_all_of_them_may(name: str) -> None:
    for a in (False, True):
        for b in (False, True):
            together = combine(Traits(**{name: a}), Traits(**{name: b}))  # type: ignore[arg-type]
            assert getattr(together, name) is (a and b)


@pytest.mark.parametrize("name", WHAT_ANY_NEEDS)
def test_together_they_need_what_any_of_them_needs(name: str) -> None:
    for a in (False, True):
        for b in (False, True):
            together = combine(Traits(**{name: a}), Traits(**{name: b}))  # type: ignore[arg-type]
            assert getattr(together, name) is (a or b)


def test_the_fewest_ranks_and_the_first_reason_count() -> None:
    assert combine(Traits(), Traits(max_ranks=5)).max_ranks == 5
    assert combine(Traits(max_ranks=3), Traits(max_ranks=5)).max_ranks == 3
    assert combine(Traits(), Traits()).max_ranks is None
    assert combine(Traits(), Traits(no_feedback="it is exact")).no_feedback == "it is exact"


def test_the_first_says_whether_feedback_is_on_by_default() -> None:
    assert combine(Traits(feedback_by_default=True), Traits(feedback_by_default=False)).feedback_by_default is True


def test_a_combination_carries_changes_when_all_may_and_none_is_left_for_parameters() -> None:
    changes, parameters = Traits(for_changes=True, every_element=True), Traits(for_parameters=True)
    assert combine(changes) == changes
    assert combine(changes, parameters) == changes
    assert combine(parameters, parameters) == parameters
    assert combine(changes, Traits()) == Traits()
    assert combine(changes, Traits(for_changes=True)) == Traits(for_changes=True)


@pytest.mark.parametrize("values", ["int8 num_bits=2", "int8 num_bits=2 entropy=rans", "uniform levels=1 entropy=zstd"])
def test_changes_may_go_in_few_bits_with_and_without_entropy_coding(values: str) -> None:
    assert build("delta", {"values": values}).traits.for_parameters
    assert not build(values, {}).traits.for_parameters


def test_a_wrapper_says_what_its_parts_say_together() -> None:
    inner, wrapped = build("topk", {"error_feedback": False}), build("topk", {})
    assert inner.traits.for_activations, "error feedback takes that, and nothing else that this method has"
    assert wrapped.traits == dataclasses.replace(inner.traits, for_activations=False)
    exact = build("identity", {})
    by_layer = build("identity", {"layers": {"*.bias": "topk"}})
    expected = combine(exact.traits, wrapped.traits)
    assert by_layer.traits == dataclasses.replace(expected, needs_segments=True)
