"""Cells of the matrix: measured once, found again, and replaced when the machine was disturbed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.fidelity.method_settings import LINK_RUNS
from experiments.links import matrix
from experiments.links.matrix import jobs, load, main, missing, undisturbed
from experiments.links.step_times import Job, label
from tests.distributed import preload

preload("fsdp_lab.train")  # its model, and the optimizer


def line(method: str, yardstick_ms: float = 1.0, ranks: int = 2) -> dict[str, object]:
    place = {"model": "blocks", "ranks": ranks, "rate": "1gbit", "method": method}
    return {**place, "yardstick_ms": yardstick_ms}


def test_labels() -> None:
    assert label(("topk", {"ratio": 0.01}, "int4", {})) == "topk ratio=0.01 + int4"
    assert len({label(run) for run in LINK_RUNS}) == len(LINK_RUNS)


def test_cells_that_the_file_has_are_not_measured_again(tmp_path: Path) -> None:
    (job,) = jobs(["blocks"], [2], ["1gbit"], ["int8", "int4"], tmp_path / "matrix.jsonl")
    assert [run[0] for run in job.runs] == ["int8", "int4"]
    assert [run[0] for run in missing(job, [line("int8 + int8")]).runs] == ["int4"]
    assert [run[0] for run in missing(job, [line("int8 + int8", ranks=4)]).runs] == ["int8", "int4"]


def test_disturbed_cells_are_told_by_their_yardstick() -> None:
    lines = [line("a", 1.0), line("b", 1.2), line("c", 1.4), line("d", 1.9, ranks=4), line("e", 2.0, ranks=4)]
    assert [kept["method"] for kept in undisturbed(lines, 1.3)] == ["a", "b", "d", "e"]


def test_a_step_count_has_bounds() -> None:
    job = Job(2, "1gbit", "blocks", [], "", seconds=2.0, least=4, most=20)
    assert [job.steps(seconds) for seconds in (10.0, 0.25, 0.001)] == [4, 8, 20]


@pytest.mark.netns
@pytest.mark.usefixtures("forked_ranks")
def test_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods behind one link: bytes as they must be, and no shorter than the link allows."""

    def short(*asked: Any) -> list[Job]:
        return [replace(job, seconds=0.0) for job in jobs(*asked)]  # as few steps as may be

    monkeypatch.setattr(matrix, "jobs", short)
    out = tmp_path / "matrix.jsonl"
    flags = [
        "--out",
        str(out),
        "--models",
        "blocks",
        "--ranks",
        "2",
        "--rates",
        "1gbit",
        "--methods",
        "none",
        "identity",
    ]
    assert main(flags) == 0
    none, identity = load(out)
    elements = identity["unit_elements"]
    blocks = sum(n for unit, n in elements.items() if unit != "root")
    assert identity["sent_bytes"] == {
        "reduce_scatter": 4 * (blocks + elements["root"]) / 2,
        "all_gather": 4 * (2 * blocks + elements["root"]) / 2,
    }
    sent = sum(identity["sent_bytes"].values())
    assert sent <= identity["interface_bytes"] < 1.05 * sent
    assert none["interface_bytes"] > 1.2 * sent  # gloo's reduce-scatter sends twice the bytes
    assert min(identity["step_ms"]) > 1e3 * (sent - 9 * identity["bucket_bytes"]) / 125e6
    assert identity["steps"] == len(identity["step_ms"]) >= 4
    before = out.read_text()
    assert main(flags) == 0
    assert out.read_text() == before


@pytest.mark.parametrize(
    ("argv", "word"),
    [(["--rates", "fast"], "rate: got 'fast'"), (["--ranks", "1"], "--ranks"), (["--out", "/no/such/x"], "--out")],
)
def test_mistakes_are_one_message(argv: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--out", "unused.jsonl", *argv])
    assert stop.value.code == 2
    assert word in capsys.readouterr().err


def test_another_kind_of_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "rows.jsonl"
    other.write_text(json.dumps({"status": "ok"}) + "\n")
    with pytest.raises(SystemExit):
        main(["--out", str(other)])
    assert "something else" in capsys.readouterr().err
