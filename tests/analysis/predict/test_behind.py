"""A measured step behind another link: what the link adds, by hand."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from analysis.predict.behind import HIDDEN, Operation, operations, step_seconds_behind
from analysis.predict.calibration import Calibration
from analysis.predict.predictor import CALIBRATION
from analysis.predict.step_model import Cost, Link

LINKS = Path(__file__).resolve().parents[3] / "results/reference/links.jsonl"

FREE = Link(math.inf, {"exchange": Cost(0.5)})
SLOW = Link(100.0, {"exchange": Cost(0.5, efficiency=((1.0, 0.5),))})


def test_an_operation_adds_what_the_link_takes_beyond_its_latency() -> None:
    assert step_seconds_behind(3.0, [Operation("reduce_scatter", 200.0)], SLOW, FREE) == 3.0 + 200 / 50 - 0.5
    assert step_seconds_behind(3.0, [Operation("reduce_scatter", 10.0)], SLOW, FREE) == 3.0  # hidden by the latency
    assert step_seconds_behind(3.0, [Operation("optimizer", 200.0)], FREE, FREE) == 3.0


def test_local_steps_share_one_synchronisation() -> None:
    every = [Operation("outer", 3000.0, 30)]
    assert step_seconds_behind(3.0, every, SLOW, FREE) == pytest.approx(3.0 + (3000 / 50 - 0.5) / 30)


def test_gathers_ahead_hide_behind_half_a_step_and_nothing_else_does() -> None:
    behind = [Operation("all_gather", 100.0, is_ahead=True), Operation("reduce_scatter", 100.0)]
    assert step_seconds_behind(10.0, behind, SLOW, FREE) == pytest.approx(10.0 + 1.5)
    assert step_seconds_behind(2.0, behind, SLOW, FREE) == pytest.approx(2.0 + 3.0 - 2.0 * HIDDEN)


def test_measured_steps_behind_links_are_predicted_from_those_without() -> None:
    """Sixteen cells: eight arms behind 1 Gbit/s and 200 Mbit/s."""
    rows = [json.loads(line) for line in LINKS.read_text().splitlines()]
    calibration = Calibration.load(CALIBRATION)
    free = {row["run_name"].partition("-gpt2")[0]: row for row in rows if row["link_rate_asked"] is None}
    errors = []
    for row in (row for row in rows if row["link_rate_asked"] is not None):
        own = free[row["run_name"].partition("-gpt2")[0]]
        exchanged = operations(own)
        assert exchanged is not None
        link, unlimited = calibration.link(2, row["link_rate_asked"] / 8), calibration.link(2, None)
        predicted = 1e3 * step_seconds_behind(own["step_time_ms_mean"] / 1e3, exchanged, link, unlimited)
        errors.append(abs(predicted / row["step_time_ms_mean"] - 1))
    assert len(errors) == 16
    assert statistics.median(errors) < 0.02
    assert max(errors) < 0.08


def test_operations_are_those_of_the_row() -> None:
    sent = {"outer": 4000, "all_gather": 0, "optimizer": 100}
    row = {"steps": 20, "bytes_compressed_by_op": sent, "config": {"outer_every": 10, "outer_fragments": 2}}
    assert operations(row) == [Operation("outer", 1000.0, 5.0), Operation("optimizer", 5.0)]
    assert operations({"steps": 20, "bytes_compressed_by_op": None}) is None
    gathers = {"steps": 2, "bytes_compressed_by_op": {"all_gather": 4}}
    assert operations({**gathers, "config": {"fsdp_prefetch": 1}}) == [Operation("all_gather", 2.0, is_ahead=True)]
    assert operations({**gathers, "config": {"fsdp_prefetch": 0}}) == [Operation("all_gather", 2.0)]
