"""What makes a report of many rows fast gives what the plain algorithms gave, and its work grows with the rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis.checks.overlaps import _span, meetings
from analysis.report.__main__ import main
from analysis.rows.comparing import comparisons as grouping
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.curves import points
from analysis.rows.curves.files import Lines, read_curve
from analysis.rows.curves.of_arms import training_curves
from analysis.rows.reading import Row, read
from analysis.statistics import intervals as statistics, names
from analysis.statistics.answers import Line, lines
from analysis.statistics.intervals import paired
from analysis.statistics.time_to_quality import MeasuredSteps, step_times, times
from experiments.bench.trainer.report import SHAPES, planted
from tests.analysis import planted_curves
from tests.analysis.planted_rows import arm, fair, row, write


def met_by_asking_every_pair(rows: Sequence[Row]) -> dict[int, set[str]]:
    """By `id` of the row the names of all runs that it shared its machine with."""
    found: dict[int, set[str]] = {}
    for one in rows:
        for two in rows:
            mine, its = _span(one), _span(two)
            if mine is None or its is None or one["run_name"] == two["run_name"]:
                continue
            if one["hardware"]["host"] == two["hardware"]["host"] and mine[0] < its[1] and its[0] < mine[1]:
                found.setdefault(id(one), set()).add(two["run_name"])
    return found


def test_meetings_are_those_of_every_pair() -> None:
    generator = random.Random(8)
    for _ in range(100):
        rows = []
        for number in range(generator.randint(1, 25)):
            end = f"2026-01-01T0{generator.randint(0, 2)}:{generator.randint(0, 59):02d}:00Z"
            host = {"host": generator.choice("ab")}
            name = generator.choice([f"run-{number}", "twice"])  # one run in two files
            wall = generator.choice([1.0, 30.0, 600.0, 3600.0])
            rows.append(row("int8", 1, run_name=name, time_utc=end, hardware=host, wall_time_s=wall))
        found, expected = meetings(rows), met_by_asking_every_pair(rows)
        assert found.keys() == expected.keys()
        assert all(found[key]["run_name"] in expected[key] for key in found)


def front_by_asking_every_pair(line: Line, among: Sequence[Line]) -> tuple[str, set[str]]:
    """``front``, and who may be named as the one that beats it."""
    if line.bits is None or line.runs.failures:
        return "-", set()
    beaten, sure = {}, {}
    for other in among:
        if other is line or other.bits is None or other.bits > line.bits or other.runs.failures:
            continue
        worse = paired(line.runs, other.runs, line.runs.runs.keys() & other.runs.runs.keys())
        if worse.mean is not None and (worse.mean > 0 or (worse.mean == 0 and other.bits < line.bits)):
            beaten[other.label] = worse.mean
            if worse.lower is not None and worse.lower > 0:
                sure[other.label] = worse.mean
    chosen = sure or beaten
    worst = {label for label, mean in chosen.items() if mean > max(chosen.values()) - 1e-12}
    return ("yes" if not beaten else "no" if sure else "perhaps"), worst


def test_the_front_is_that_of_every_pair() -> None:
    generator = random.Random(8)
    for _ in range(30):
        rows = arm("none")
        for number in range(12):
            seeds = generator.sample(range(1, 7), generator.randint(1, 6))
            worse = {seed: generator.gauss(0.01, 0.01) for seed in seeds}
            sent = {"reduce_scatter": generator.choice([100, 200, 300]), "all_gather": 100}
            for seed in seeds:
                lost = {"val_loss": None, "nonfinite_fields": ["val_loss"]} if generator.random() < 0.02 else {}
                settings = {"comm_config_json": {"block_size": number}, "bytes_compressed_by_op": sent}
                rows.append(
                    row("int8", seed, worse[seed], bytes_compressed_total=sum(sent.values()), **settings, **lost)
                )
        found = lines(comparisons(rows)[0])
        for line in found:
            front, worst = front_by_asking_every_pair(line, found)
            assert line.front == front
            assert line.beaten_by in (worst or {None})


def test_short_names_leave_out_what_all_have() -> None:
    generator = random.Random(8)
    for _ in range(50):
        settings = [
            {name: generator.choice([1, True, "a", 1.0]) for name in generator.sample("abcdefgh", 5)} for _ in range(4)
        ]
        rows = [row("int8", 1, comm_config_json=one | {"z" * 40: 0}, run_name=str(one)) for one in settings]
        found = [runs.arm for runs in names.named(comparisons(rows))[0].arms]
        assert len({one.label for one in found}) == len(found)
        for one in found:
            if "no." not in one.label and len(found) > 1:
                assert "z" * 40 not in one.label


def test_losses_are_read_once_an_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """`better_than_baseline` asked for all of the baseline's losses once a seed: quadratic in the seeds."""
    asked = 0

    def count(found: Row) -> float | None:
        nonlocal asked
        asked += 1
        return loss_of(found)

    loss_of = grouping.loss_of
    monkeypatch.setattr(grouping, "loss_of", count)
    seeds = tuple(range(1, 7))
    many = [Row({**dict(r), "seed": 1000 * k + r["seed"]}) for k in range(20) for r in arm("none", seeds=seeds)]
    many += [Row({**dict(r), "seed": 1000 * k + r["seed"]}) for k in range(20) for r in arm("int8", -0.1, seeds=seeds)]
    comparison = comparisons(many)[0]
    asked = 0
    statistics.better_than_baseline(comparison)
    assert asked <= 4 * len(many)


@pytest.mark.parametrize("shape", SHAPES)
def test_planted_rows_are_sound(shape: str, tmp_path: Path) -> None:
    rows = [Row(one) for one in planted(60, shape)]
    there = read(write(tmp_path / "rows.jsonl", rows))
    found = there.drafts if shape == "drafts" else there.rows
    assert (len(found), there.left_out) == (60, [])
    assert len({one["run_name"] for one in found}) == 60


def test_rows_are_looked_through_once_for_the_steps_of_all_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(found: Row, across_training: bool = False) -> Arm:
        nonlocal made
        made += 1
        return of(found, across_training)

    rows = [Row(one) for one in planted(300, "links")]
    compared, of = comparisons(rows), Arm.of
    plain = [step_times(rows, comparison) for comparison in compared]
    monkeypatch.setattr(Arm, "of", counted)
    steps = MeasuredSteps(rows)
    assert [steps.of(comparison) for comparison in compared] == plain
    assert made == len(rows)
    assert all(len(found) == 50 for found in plain), "ten arms behind five links"


def test_a_curve_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_files: list[object] = []

    def counted(found: Row) -> tuple[Lines, list[str]]:
        read_files.append(found["run_name"])
        return read_curve(found)

    rows = planted_curves.arm(tmp_path, "none") + planted_curves.arm(tmp_path, "int8", worse=0.03, error=0.1)
    monkeypatch.setattr(points, "read_curve", counted)
    (comparison,) = comparisons(rows)
    for quantity in ("train_loss", "val_loss", "grad_rel_error"):
        training_curves(comparison, quantity, "train_seconds")
    times(comparison, rows, [None])
    assert sorted(map(str, read_files)) == sorted(one["run_name"] for one in rows)


def test_no_more_groups_are_drawn_than_asked_for(tmp_path: Path) -> None:
    settings = itertools.product((100, 200), (2, 4, 8))
    rows = [
        Row({**one, "world_size": world, "run_name": f"{one['run_name']}-{world}-{steps}", "config": config})
        for steps, world in settings
        for one in fair()
        for config in [{**one["config"], "max_steps": steps}]
    ]
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "report"
    assert main([str(file), "--out", str(out), "--formats", "svg", "--drawn_comparisons", "1"]) == 0
    assert [path.name for path in out.glob("along-*.svg")] == ["along-world-sizes-1-world_sizes.svg"]
    text = (out / "report.md").read_text()
    assert text.count("largest groups of comparisons") == 1
    assert text.count("## Along world sizes") == 2


def test_no_more_comparisons_are_drawn_than_asked_for(tmp_path: Path) -> None:
    rows = [Row({**one, "world_size": w, "run_name": f"{one['run_name']}-{w}"}) for w in (2, 4, 8) for one in fair()]
    file = write(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "report"
    assert main([str(file), "--out", str(out), "--formats", "svg", "--drawn_comparisons", "1"]) == 0
    drawn = {path.name.partition("-ranks")[0] for path in out.glob("gpt2*.svg")}
    assert len(drawn) == 1
    text = (out / "report.md").read_text()
    assert text.count("figures are drawn for the 1 largest comparisons") == 2
    assert text.count("| int8 + int8 |") >= 3, "tables are of all"
