"""A measured step behind another link: what the link adds, by hand."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.predict.__main__ import main
from analysis.predict.behind import BLOCKS, FORWARD, Operation, Traffic, step_seconds_behind, traffic
from analysis.predict.calibration import Calibration
from analysis.predict.checked_rows import checked
from analysis.predict.predictor import CALIBRATION
from analysis.predict.step_model import Cost, Link
from analysis.rows.reading import read

REFERENCE = Path(__file__).resolve().parents[3] / "results/reference/links"

FREE = Link(math.inf, {"exchange": Cost(0.5), "reduce_scatter": Cost(0.5), "all_gather": Cost(0.5)})
SLOW = Link(100.0, {kind: Cost(0.5, efficiency=((1.0, 0.5),)) for kind in FREE.costs})  # 50 bytes a second
ALL = {"forward": 0.25, "backward": 0.5}


def seconds(measured_s: float, *operations: Operation) -> float:
    return step_seconds_behind(measured_s, Traffic(operations, ALL), SLOW, FREE)


def test_an_operation_adds_what_the_link_takes_beyond_its_latency() -> None:
    assert seconds(3.0, Operation("reduce_scatter", 200.0)) == 3.0 + 200 / 50 - 0.5
    assert seconds(3.0, Operation("reduce_scatter", 10.0)) == 3.0  # hidden by the latency
    assert step_seconds_behind(3.0, Traffic([Operation("optimizer", 200.0)], ALL), FREE, FREE) == 3.0


def test_local_steps_share_one_synchronisation() -> None:
    assert seconds(3.0, Operation("outer", 3000.0, 30)) == pytest.approx(3.0 + (3000 / 50 - 0.5) / 30)


def test_what_runs_behind_computation_is_waited_for_where_it_is_longer() -> None:
    root = Operation("all_gather", 100.0)
    forward, backward = (Operation("all_gather", 100.0, behind=window) for window in ("forward", "backward"))
    reduction = Operation("reduce_scatter", 100.0, behind="backward")
    assert seconds(10.0, forward, backward) == 10.0, "2 s each, behind 2.5 and 5 s"
    assert seconds(10.0, root, forward, backward, reduction) == pytest.approx(10.0 + 1.5), "only the root's"
    assert seconds(4.0, forward, backward, reduction) == pytest.approx(4.0 + 1.0 + 2.0)


def row(**changes: Any) -> dict[str, Any]:
    """One step of a model whose root has 30 parameters, its blocks 70: 100 are reduced and 170 gathered."""
    config = {"comm_compress": "int8", "param_compress": "int8", "fsdp_prefetch": 1, "fsdp_overlap_reduce": 2}
    values = {
        "steps": 1,
        "elements_by_op": {"reduce_scatter": 100, "all_gather": 170},
        "bytes_compressed_by_op": {"reduce_scatter": 100, "all_gather": 170},
        "bytes_raw_by_op": {"reduce_scatter": 400, "all_gather": 680},
    }
    return {**values, "config": config | changes}


def sent(found: Traffic | None) -> list[tuple[str, str | None, float, str]]:
    assert found is not None
    return [(one.name, one.behind, round(one.sent, 6), one.kind) for one in found.operations]


def test_the_root_hides_nothing_and_blocks_what_they_compute() -> None:
    found = traffic(row())
    assert sent(found) == [
        ("reduce_scatter", None, 30.0, "exchange"),
        ("reduce_scatter", "backward", 70.0, "exchange"),
        ("all_gather", None, 30.0, "exchange"),
        ("all_gather", "forward", 70.0, "exchange"),
        ("all_gather", "backward", 70.0, "exchange"),
    ]
    assert found is not None
    assert found.windows == pytest.approx({"forward": 0.7 * FORWARD, "backward": 0.7 * (1 - FORWARD)})


@pytest.mark.parametrize(
    ("changes", "hidden"),
    [
        ({"fsdp_overlap_reduce": 0}, ["forward", "backward"]),
        ({"fsdp_overlap_reduce": None}, ["forward", "backward"]),
        ({"fsdp_prefetch": 0}, ["backward"]),
        ({"fsdp_reshard": False}, ["backward", "forward"]),
        ({"comm_compress": "none"}, ["forward", "backward"]),
    ],
)
def test_what_hides_is_what_the_run_was_told_to_overlap(changes: dict[str, Any], hidden: list[str]) -> None:
    assert [behind for _, behind, _, _ in sent(traffic(row(**changes))) if behind] == hidden


def test_stock_collectives_have_costs_of_their_own() -> None:
    found = sent(traffic(row(comm_compress="none", param_compress="none")))
    assert {kind for *_, kind in found} == {"reduce_scatter", "all_gather"}
    assert sum(bytes_ for name, _, bytes_, _ in found if name == "reduce_scatter") == 400, "payload, not what was sent"


def test_a_steady_step_has_no_first_gather() -> None:
    values = row(param_compress="delta") | {"steps": 11}
    values["bytes_compressed_by_op"] = {"reduce_scatter": 1100, "all_gather": 400 + 10 * 17}
    values["elements_by_op"] = {"reduce_scatter": 1100, "all_gather": 1870}
    for steady, expected in ((True, 17.0), (False, 570 / 11)):
        gathered = [bytes_ for name, _, bytes_, _ in sent(traffic(values, steady)) if name == "all_gather"]
        assert sum(gathered) == pytest.approx(expected)


def test_operations_are_those_of_the_row() -> None:
    other = {"outer": 4000, "all_gather": 0, "optimizer": 100}
    found = traffic({"steps": 20, "bytes_compressed_by_op": other, "config": {"outer_every": 10, "outer_fragments": 2}})
    assert found is not None
    assert found.operations == [Operation("outer", 1000.0, 5.0), Operation("optimizer", 5.0)]
    assert found.windows["forward"] == pytest.approx(FORWARD * BLOCKS)
    assert traffic({"steps": 20, "bytes_compressed_by_op": None}) is None


SEEN = ("1 Gbit/s", "200 Mbit/s")  # links whose cells the rule was chosen by


@pytest.mark.parametrize(
    ("name", "rates", "cells", "median", "worst"),
    [
        ("links.jsonl", SEEN, 16, 0.02, 0.085),
        ("user_model.jsonl", SEEN, 16, 0.042, 0.175),
        ("user_model.jsonl", ("100 Mbit/s",), 7, 0.055, 0.23),
    ],
)
def test_measured_steps_behind_links_are_predicted_from_those_without(
    name: str, rates: Sequence[str], cells: int, median: float, worst: float
) -> None:
    """Eight arms behind each link, but for a run that was not made."""
    found = checked(read(REFERENCE / name).rows, Calibration.load(CALIBRATION))
    errors = [abs(cell.error) for cell in found if cell.rate in rates]
    assert len(errors) == cells
    assert statistics.median(errors) < median
    assert max(errors) < worst


def test_the_command_checks_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--check_rows", str(REFERENCE / "user_model.jsonl")]) == 0
    assert "23 cells: median error" in capsys.readouterr().out
    lines = (REFERENCE / "links.jsonl").read_text().splitlines()
    free = tmp_path / "free.jsonl"
    free.write_text("".join(line + "\n" for line in lines if json.loads(line)["link_rate_asked"] is None))
    with pytest.raises(SystemExit) as stopped:
        main(["--check_rows", str(free)])
    assert stopped.value.code == 2
    assert "no run behind a link has a row" in capsys.readouterr().err
