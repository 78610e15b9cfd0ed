"""The two methods of an arm."""

from __future__ import annotations

import pytest

from experiments.bench.traffic.arms import methods_of


def test_an_arm_has_a_method_for_each_direction_or_none() -> None:
    assert methods_of("none") == (None, None)
    both = methods_of("int4 hadamard + delta")
    assert [method.name for method in both if method is not None] == ["int4", "delta"]
    assert methods_of("none + int8").gradients is None


def test_a_method_that_cannot_carry_it_is_refused() -> None:
    with pytest.raises(ValueError, match="topk does not carry parameters"):
        methods_of("int8 + topk")
