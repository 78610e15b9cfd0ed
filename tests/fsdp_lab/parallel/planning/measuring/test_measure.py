"""Ranks measure themselves and their link, and a plan can be made of what they say."""

from __future__ import annotations

import random

import pytest
import torch

from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.planning.devices import Devices, LinearTime
from fsdp_lab.parallel.planning.job import Job, Methods
from fsdp_lab.parallel.planning.measuring.measure import line_through, measure, shares_to_time
from fsdp_lab.parallel.planning.measuring.meeting import _added
from fsdp_lab.parallel.planning.plan import plan
from fsdp_lab.parallel.planning.steps.work import PARTS
from tests.distributed import run_ranks

JOB = Job.of("llama-mini", 2, 16)
INT8 = Methods("int8", "int8", {"int8": 8.125})


def measured() -> Devices:
    torch.set_num_threads(1)
    return measure(JOB, INT8, repeats=1)


def test_ranks_measure_themselves_and_their_link() -> None:
    first, second = run_ranks(2, measured)
    # the link's figures are those of the slowest rank, on every rank, and each rank knows all devices
    assert first == second
    assert first.are_measured_for("llama-mini", 2, 16)
    for device in first.devices:
        assert device.parts.keys() == {f"{layout}.{part}" for layout, own in PARTS.items() for part in own}
        assert device.gflops > 0
        assert device.memory_mb > device.base_mb > 0
        assert device.update_ns > 0
    kinds = {"all_reduce", "all_gather", "all_gather_parts", "reduce_scatter", "reduce_scatter_parts"}
    assert first.link.costs.keys() == {f"{kind} {method}" for kind in kinds for method in ("none", "identity", "int8")}
    assert first.link.mbit_per_s > 0
    found = plan(first, JOB, [Methods(bits=INT8.bits), INT8])
    assert {one.layout for one in found if not one.refused} >= {*LAYOUTS, "fsdp", "ddp", "gpipe", "1f1b"}


def test_lines_go_through_their_points_and_never_down() -> None:
    line = line_through([(0.25, 2.0), (0.5, 3.0), (0.75, 4.0)])
    assert line.at(1.0) == pytest.approx(5.0)
    assert line.fixed == pytest.approx(1.0)
    generator = random.Random(0)
    for _ in range(50):
        points = [(generator.random(), generator.random()) for _ in range(generator.randint(1, 4))]
        drawn = line_through(points)
        assert drawn.fixed >= 0
        assert drawn.slope >= 0


def test_shares_to_time_surround_equal_ones() -> None:
    for world in (2, 3, 8):
        shares = shares_to_time(world)
        assert all(0 < share < 1 for share in shares)
        assert min(shares) < 1 / world <= max(shares)


def test_meetings_are_added_to_what_each_method_takes() -> None:
    costs = {
        "all_reduce none": LinearTime(1.0, 2.0),
        "all_gather identity": LinearTime(0.5, 0.0),
        "all_reduce int8": LinearTime(0.0, 1.0),
    }
    added = _added(costs, {"none": 0.25, "int8": 4.0})
    assert added == {
        "all_reduce none": LinearTime(1.25, 2.0),
        "all_gather identity": LinearTime(4.5, 0.0),
        "all_reduce int8": LinearTime(4.0, 1.0),
    }
    assert _added(costs, {"none": 0.25})["all_gather identity"] == LinearTime(0.75, 0.0)
