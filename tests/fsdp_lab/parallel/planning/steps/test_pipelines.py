"""Schedules: every pass is made once, in an order that can be kept, and takes as long as theory says."""

from __future__ import annotations

from itertools import product

import pytest

from fsdp_lab.parallel.planning.steps.pipelines import PIPELINES, makespan, order_of


@pytest.mark.parametrize("schedule", PIPELINES)
def test_every_pass_is_made_once_and_forward_first(schedule: str) -> None:
    for stages, micro in product((2, 3, 4), (1, 2, 4, 7)):
        for stage in range(stages):
            order = order_of(schedule, stage, stages, micro)
            assert sorted(order) == sorted((way, m) for way in "FB" for m in range(micro))
            assert all(order.index(("F", m)) < order.index(("B", m)) for m in range(micro))


def test_1f1b_keeps_few_micro_batches_and_gpipe_all() -> None:
    for stages, micro, stage in product((2, 3), (4, 7), (0, 1)):
        for schedule, most in (("1f1b", min(micro, stages - stage)), ("gpipe", micro)):
            order = order_of(schedule, stage, stages, micro)
            under_way = [sum(1 if way == "F" else -1 for way, _ in order[:i]) for i in range(len(order) + 1)]
            assert max(under_way) == most


@pytest.mark.parametrize("schedule", PIPELINES)
def test_equal_stages_leave_the_known_bubble(schedule: str) -> None:
    """(M + S - 1) passes of each direction (Narayanan et al., arXiv 2104.04473, section 2.2)."""
    for stages, micro in product((2, 3, 4), (1, 4, 8)):
        orders = [order_of(schedule, stage, stages, micro) for stage in range(stages)]
        assert makespan(orders, [1.0] * stages, [2.0] * stages, 0.0, 0.0) == pytest.approx(3 * (micro + stages - 1))


def test_a_slow_link_is_what_limits() -> None:
    orders = [order_of("gpipe", stage, 2, 4) for stage in range(2)]
    # four messages there, one after another, and four back; the first pass before them, the last behind
    assert makespan(orders, [1.0, 0.1], [0.1, 0.1], 10.0, 0.0) == pytest.approx(1 + 40 + 0.1 + 0.1 + 40 + 0.1)
    assert makespan(orders, [0.0, 0.0], [0.0, 0.0], 0.0, 3.0) == pytest.approx(6)


def test_an_order_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        makespan([[("B", 0), ("F", 0)], [("F", 0), ("B", 0)]], [1, 1], [1, 1], 0, 0)
