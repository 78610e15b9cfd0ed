"""The verifier against entries that hold, and against cheats: each is found by the check that is for it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from experiments.speedrun import __main__ as command, entry as entries, verify
from experiments.speedrun.checks import order_of_tokens
from experiments.speedrun.entry import ROWS, STATISTICS, read
from experiments.speedrun.task import ENTRY, FEWEST_RUNS, TASK
from tests.experiments.speedrun.planted import (
    RACE,
    TOKENS,
    Row,
    changed,
    digest,
    honest,
    of_entry,
    seal,
    with_config,
    write_curve,
)


@pytest.fixture(autouse=True)
def known_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is not tokenised; what its sequences would give is known."""
    monkeypatch.setattr(order_of_tokens, "_digest", lambda _, __, ___, seed, rows, batches: digest(seed, rows, batches))
    monkeypatch.setattr(order_of_tokens, "_validation_tokens", lambda *_: TOKENS)


def found(folder: Path) -> dict[str, str]:
    """What the checks say, by check."""
    said: dict[str, str] = {}
    for check, complaint in verify.from_files(folder):
        said[check] = said.get(check, "") + complaint + "\n"
    return said


def test_an_honest_entry_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = honest(tmp_path / "mine")
    assert found(folder) == {}
    assert command.main(["verify", str(folder)]) == 0
    assert "the entry holds" in capsys.readouterr().out


def only_own(change: Callable[[Row], Row]) -> Callable[[int, Row], Row]:
    return lambda _, row: change(row) if of_entry(row) else row


def better(row: Row) -> Row:
    loss = row["val_loss"] - 0.1
    return {**row, "val_loss": loss, "val_ppl": math.exp(loss)}


def faster(row: Row) -> Row:
    return {**row, "train_time_s": row["train_time_s"] / 2, "step_time_ms_mean": row["step_time_ms_mean"] / 2}


def lighter(row: Mapping[str, Any]) -> Row:
    by_op = {op: value // 2 for op, value in row["bytes_compressed_by_op"].items()}
    ratios = {name: 2 * row[name] for name in row if name.startswith("compression_ratio") and row[name]}
    bandwidth = {"effective_bw_compressed_gbps": row["effective_bw_compressed_gbps"] / 2}
    total = {"bytes_compressed_total": row["bytes_compressed_total"] // 2, "bytes_compressed_by_op": by_op}
    return {**row, **ratios, **bandwidth, **total}


CHEATS: dict[str, tuple[Callable[[int, Row], Row | None], bool, str, str]] = {
    "an edited loss": (only_own(better), False, "outcome", "its curve has the validation loss"),
    "an edited time": (only_own(faster), False, "session", "s of training, and the row says"),
    "baselines that claim less time": (
        lambda _, row: row if of_entry(row) else faster(row),
        True,
        "bytes",
        "longer than it says that it trained",
    ),
    "fewer bytes than the interface saw": (only_own(lighter), True, "bytes", "its interface sent"),
    "bytes that the trainer does not trust": (
        only_own(lambda row: {**row, "bytes_trusted": False}),
        False,
        "bytes",
        "bytes_trusted",
    ),
    "another model": (
        only_own(lambda row: with_config({**row, "model": "gpt2-mini"}, model="gpt2-mini")),
        False,
        "task",
        "model is 'gpt2-mini'; the task",
    ),
    "a model with fewer parameters": (
        only_own(lambda row: {**row, "num_parameters": 900_000}),
        False,
        "task",
        "num_parameters",
    ),
    "weights that were trained before": (
        only_own(lambda row: with_config(row, model_dir="good")),
        False,
        "task",
        "model_dir is 'good'",
    ),
    "one rank": (
        only_own(lambda row: {**row, "world_size": 1, "mfu": 2 * row["mfu"]}),
        False,
        "task",
        "1 ranks; the entry says 2",
    ),
    "half the tokens": (
        only_own(lambda row: {**row, "tokens_seen": row["tokens_seen"] // 2}),
        False,
        "task",
        "its settings and ranks take others",
    ),
    "another validation split": (
        only_own(lambda row: with_config(row, val_fraction=0.001)),
        False,
        "task",
        "val_fraction is 0.001",
    ),
    "an easier part of the validation split": (
        only_own(lambda row: {**row, "val_tokens": 12_700}),
        False,
        "tokens",
        "12700 validation tokens",
    ),
    "other sequences": (
        only_own(lambda row: {**row, "data_digest": "0" * 32}),
        False,
        "tokens",
        "in the order of its seed",
    ),
    "a wider link": (
        only_own(lambda row: {**row, "link_rate_asked": 1e9, "link_rate_measured": 9e8}),
        False,
        "task",
        "its link had",
    ),
    "a link that was not the one asked for": (
        only_own(lambda row: {**row, "link_rate_measured": 9e8}),
        False,
        "task",
        "no link of this track",
    ),
    "a seed that was chosen": (
        lambda number, row: with_config({**row, "seed": 7}, seed=7) if number == 0 else row,
        False,
        "task",
        "these settings have the seeds",
    ),
    "a bad run left out": (
        lambda number, row: None if number == 0 else row,
        False,
        "task",
        "entry: runs with the seeds",
    ),
    "slower baselines": (
        lambda _, row: row if of_entry(row) else with_config(row, batch_size=2),
        False,
        "task",
        "is of no arm",
    ),
    "baselines of another day": (
        lambda _, row: row if of_entry(row) else {**row, "time_utc": "2026-11-20T00:00:00+00:00"},
        False,
        "session",
        "not one session",
    ),
    "baselines of another machine": (
        lambda _, row: row if of_entry(row) else {**row, "hardware": {**row["hardware"], "cpu": "a slow one"}},
        False,
        "session",
        "hardware is not the same",
    ),
    "code that nobody has": (lambda _, row: {**row, "git_dirty": True}, False, "session", "no commit has"),
    "more cores": (
        lambda _, row: {**row, "hardware": {**row["hardware"], "cores": 16}},
        False,
        "session",
        "ranks were given 16 cores",
    ),
    "a run that was resumed": (only_own(lambda row: {**row, "resumed_at_steps": [100]}), False, "task", "checkpoint"),
    "a target that chance may have reached": (
        lambda number, row: (
            {**row, "val_loss": (loss := TASK.target - 0.05 + 0.2 * (number % 2)), "val_ppl": math.exp(loss)}
            if of_entry(row)
            else row
        ),
        True,
        "outcome",
        "not reached beyond chance",
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_found(cheat: str, tmp_path: Path) -> None:
    change, with_curves, check, complaint = CHEATS[cheat]
    folder = honest(tmp_path / "cheat")
    changed(folder, change, curves=with_curves)
    said = found(folder)
    assert complaint in said.get(check, ""), said
    assert "files" not in said


def test_rows_that_were_edited_by_hand_are_found_at_once(tmp_path: Path) -> None:
    folder = honest(tmp_path / "cheat")
    rows = (folder / ROWS).read_text()
    (folder / ROWS).write_text(rows.replace('"status": "ok"', '"status": "ok" ', 1))
    (folder / "curves" / "more.jsonl").write_text("")
    assert "rows.jsonl was changed" in found(folder)["files"]
    assert "more.jsonl was not written" in found(folder)["files"]


def test_a_curve_that_sent_other_bytes_than_its_row_is_found(tmp_path: Path) -> None:
    folder = honest(tmp_path / "cheat")
    write_curve(folder, lighter(read(folder).rows[0]))
    seal(folder)
    assert "other bytes than its row" in found(folder)["session"]


def test_figures_that_the_rows_do_not_give_are_found(tmp_path: Path) -> None:
    folder = honest(tmp_path / "cheat")
    figures = json.loads((folder / STATISTICS).read_text())
    figures["faster"]["none"]["times"] = 9.0
    (folder / STATISTICS).write_text(json.dumps(figures))
    said = json.loads((folder / entries.HEADER).read_text())
    entries.finish(folder, RACE, {key: said[key] for key in ("by", "label", "linked")}, figures)
    assert "does not say what follows from the rows" in found(folder)["outcome"]


def test_two_runs_at_once_are_found(tmp_path: Path) -> None:
    folder = honest(tmp_path / "cheat")

    def earlier(number: int, row: Row) -> Row:
        ended = datetime.fromisoformat(row["time_utc"]) - timedelta(seconds=30 * (number == 4))
        return {**row, "time_utc": ended.isoformat(timespec="seconds")}

    changed(folder, earlier)
    assert "s before" in found(folder)["session"]


def test_other_settings_in_the_folder_than_those_that_ran_are_found(tmp_path: Path) -> None:
    folder = honest(tmp_path / "cheat")
    (folder / entries.SETTINGS).write_text("comm_compress: int8\n")
    other = replace(RACE, own={"comm_compress": "int8"})
    seal(folder, other)
    assert (
        "is of no arm: it differs from the entry's settings in comm_compress 'int4', not 'int8'"
        in found(folder)["task"]
    )


def test_a_plugin_that_is_exchanged_has_other_seeds(tmp_path: Path) -> None:
    folder = honest(tmp_path / "cheat")
    (folder / entries.PLUGIN).write_text("# another file than ran\n")
    seal(folder)
    assert "these settings have the seeds" in found(folder)["task"]


def test_a_folder_that_is_no_entry_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["verify", str(tmp_path)])
    assert ended.value.code == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"val_loss": TASK.target + 0.01}, "above the target"), ({"bytes_compressed_total": 10**9}, "bytes a step")],
)
def test_a_second_run_that_ends_elsewhere_speaks_against_an_entry(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    first = read(honest(tmp_path / "first"))
    again = read(honest(tmp_path / "again", replace(RACE, first=FEWEST_RUNS)))
    assert verify.against_a_second_run(first, again) == []
    rows = [{**row, **changes} if again.arm_of(row) == ENTRY else row for row in again.rows]
    assert complaint in "".join(verify.against_a_second_run(first, replace(again, rows=rows)))


def test_a_second_run_that_is_slower_speaks_against_an_entry(tmp_path: Path) -> None:
    first = read(honest(tmp_path / "first"))
    again = read(honest(tmp_path / "again", replace(RACE, first=FEWEST_RUNS)))
    rows = [
        {**row, "train_time_s": 2 * row["train_time_s"]} if again.arm_of(row) == ENTRY else row for row in again.rows
    ]
    assert "times as fast as bf16" in "".join(verify.against_a_second_run(first, replace(again, rows=rows)))
    elsewhere = [{**row, "hardware": {**row["hardware"], "cpu": "another"}} for row in rows]
    assert verify.against_a_second_run(first, replace(again, rows=elsewhere)) == []
