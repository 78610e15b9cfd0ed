"""Which arms are one method at several strengths."""

from __future__ import annotations

import json
from typing import Any

from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.strengths import strengths


def arm(gradients: str, parameters: str = "none", given: dict[str, Any] | None = None, **settings: Any) -> Arm:
    """``settings``: of the gradients' method; ``given``: of the parameters'."""
    canonical = {"sort_keys": True, "separators": (",", ":")}
    return Arm(gradients, json.dumps(settings, **canonical), parameters, json.dumps(given or {}, **canonical))  # type: ignore[arg-type]


def test_arms_that_differ_in_one_number_of_either_method() -> None:
    weak, usual, strong = arm("topk", ratio=0.2), arm("topk"), arm("topk", ratio=0.001)
    fine, coarse = (arm("ecsq", "delta", {"mode": "grid", "step": step}) for step in (0.05, 0.2))
    found = strengths([arm("none"), weak, fine, usual, coarse, strong, arm("ecsq", "delta")])
    assert [(one.key, one.arms) for one in found] == [("ratio", (weak, usual, strong)), ("step", (fine, coarse))]
    by_ratio, by_step = found
    assert by_ratio.head == usual
    assert [by_ratio.short(one) for one in by_ratio.arms] == ["ratio=0.2", "topk", "ratio=0.001"]
    assert [by_step.short(one) for one in by_step.arms] == [fine.label, "step=0.2"]


def test_other_differences_are_other_methods() -> None:
    others = [
        arm("topk", values="int8", ratio=0.2),
        arm("topk"),
        arm("topk", "int8", ratio=0.2),
        arm("int4", ratio=0.2),
    ]
    assert strengths(others) == []
    assert strengths([arm("int4", hadamard=True), arm("int4"), arm("int4", hadamard=False)]) == []


def test_an_arm_is_a_strength_of_one_series_only_the_longest() -> None:
    usual = arm("sketch")
    by_ratio = [arm("sketch", ratio=ratio) for ratio in (0.005, 0.05)]
    found = strengths([arm("sketch", width=3), usual, *by_ratio])
    assert [one.arms for one in found] == [(usual, *by_ratio)]
