"""When a run reaches its targets: by the first evaluation that does."""

from __future__ import annotations

import math

from fsdp_lab.run.goals import Goals
from fsdp_lab.training.evaluate import Evaluation


def test_a_target_is_reached_by_the_first_evaluation_that_does() -> None:
    goals = Goals(target_ppl=math.exp(2.0), at_s=None)
    assert goals.row()["reached_target"] is False
    for step, loss in ((10, 2.1), (20, 1.9), (30, 1.5)):
        goals.saw(step, step / 4, Evaluation(loss, 100, 0.5))
    assert goals.row() == {
        "reached_target": True,
        "steps_to_target_ppl": 20,
        "time_to_target_ppl_s": 5.0,
        "ppl_at_fixed_time": None,
    }


def test_a_miss_is_a_miss_and_no_target_is_neither() -> None:
    missed, none = Goals(2.0, None), Goals(None, None)
    for goals in (missed, none):
        goals.saw(10, 5.0, Evaluation(0.8, 100, 0.5))
    assert missed.row() == {
        "reached_target": False,
        "steps_to_target_ppl": None,
        "time_to_target_ppl_s": None,
        "ppl_at_fixed_time": None,
    }
    assert none.row()["reached_target"] is None


def test_perplexity_at_a_time_is_that_of_the_first_evaluation_after_it() -> None:
    goals = Goals(None, at_s=6.0)
    assert [goals.is_time(s) for s in (5.9, 6.0)] == [False, True]
    goals.saw(10, 5.9, Evaluation(3.0, 100, 0.5))
    goals.saw(11, 6.3, Evaluation(2.0, 100, 0.5))
    assert not goals.waits_for_time
    goals.saw(12, 6.9, Evaluation(1.0, 100, 0.5))
    assert goals.row()["ppl_at_fixed_time"] == math.exp(2.0)
