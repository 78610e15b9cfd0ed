"""Stock traffic from hand-made profiles with known answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsdp_lab.measure.profile_report import read_profile
from fsdp_lab.measure.profiling import STEP, StockTraffic, Window, stock_calls


@dataclass
class Range:
    start: float
    end: float


@dataclass
class Event:
    name: str
    start: float
    end: float
    input_shapes: list[list[int]] = field(default_factory=list)

    @property
    def time_range(self) -> Range:
        return Range(self.start, self.end)


def step(start: float, gather_us: float) -> list[Event]:
    """One step of 1000 us: an all-gather of 12 elements, a reduce-scatter of 20, and an optimizer's all-reduce."""
    return [
        Event(STEP, start, start + 1000),
        Event("c10d::_allgather_base_", start + 10, start + 12, [[12], [6], []]),
        Event("gloo:all_gather", start + 11, start + 11 + gather_us, [[6]]),
        Event("c10d::_reduce_scatter_base_", start + 700, start + 702, [[10], [20], []]),
        Event("gloo:all_reduce", start + 701, start + 751, [[20]]),
        Event("gloo:all_reduce", start + 900, start + 990, [[1]]),
    ]


def window(*gather_us: float) -> list[Event]:
    return [event for i, us in enumerate(gather_us) for event in step(2000.0 * i, us)]


def traffic(*ranks: list[Event], backend: str = "gloo") -> StockTraffic:
    return StockTraffic([stock_calls(events) for events in ranks], {"reduce_scatter": 4, "all_gather": 2}, backend)


def test_bytes_are_those_that_leave_a_rank() -> None:
    ops = traffic(window(100, 100), window(100, 100)).ops
    assert (ops["all_gather"].elements, ops["all_gather"].raw_bytes, ops["all_gather"].sent_bytes) == (6, 12, 12)
    assert (ops["reduce_scatter"].elements, ops["reduce_scatter"].raw_bytes) == (10, 40)
    assert ops["reduce_scatter"].sent_bytes == 80, "gloo's reduce-scatter is an all-reduce"
    assert traffic(window(1), window(1), backend="nccl").ops["reduce_scatter"].sent_bytes == 40


def test_waiting_for_a_slow_rank_is_not_communication() -> None:
    ops = traffic(window(9, 100, 30, 500), window(9, 20, 400, 50)).ops
    assert ops["all_gather"].milliseconds == pytest.approx(0.030)  # the median of 20, 30 and 50 us; the first step out
    assert ops["reduce_scatter"].milliseconds == pytest.approx(0.050), "and the optimizer's all-reduce is not counted"


def test_which_steps_a_window_disturbs() -> None:
    def disturbed(first: int, steps: int) -> list[int]:
        window = Window(first, steps, None, 0)
        return [step for step in range(1, 12) if window.disturbs(step)]

    assert disturbed(4, 2) == [3, 4, 5, 6, 7], "from the profiler's own warm-up to two steps after"
    assert disturbed(1, 1) == [1, 2, 3]
    assert disturbed(4, 0) == []


def test_a_trace_that_cannot_be_read_is_said_and_ends_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "rank0.1.pt.trace.json"
    broken.write_text('{"traceEvents": [')
    ranks: Any = SimpleNamespace(gather=lambda mine: [object(), mine])
    profile, complaint = read_profile(broken, ranks)
    assert profile is None
    assert complaint is not None
    assert complaint.startswith(f"no profile: {broken}: not a whole trace")


def test_no_window_no_traffic() -> None:
    for nothing in (traffic(), traffic([], [])):
        assert all(op.sent_bytes == 0 and op.milliseconds == 0 for op in nothing.ops.values())


def test_a_window_of_no_steps_profiles_nothing_and_disturbs_nothing() -> None:
    window = Window(6, 0, None, 0)
    for step in range(5, 9):
        window.begin_step(step)
        assert not window.disturbs(step)
        window.end_step()
        assert window.collect(step) is None
    assert window._profiler is None
