"""`fsdp-lab speedrun` from flags to folder, with a stand-in for the trainer; and the table of records."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.speedrun import __main__ as command, records, running
from experiments.speedrun.entry import LOGS, SETTINGS, read
from experiments.speedrun.task import ENTRY
from experiments.sweeps import runner
from experiments.sweeps.recipe.cells import Cell
from tests.experiments.speedrun.planted import changed, honest, of_entry, on_other_track

PLUGIN = """
import comm_compress as cc
from comm_compress.methods.identity import Identity, IdentityConfig


@cc.register("entered", IdentityConfig)
class Entered(Identity):
    pass
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warm-up and no link; the runs are those of a trainer that takes no time."""

    def command_of(cell: Cell, settings: Path, slurm: Mapping[str, str] | None = None) -> list[str]:
        return [sys.executable, "-m", "tests.experiments.sweeps.fake_trainer", "--config", str(settings)]

    monkeypatch.setattr(running, "unavailable", lambda: "no root")
    monkeypatch.setattr(running, "_warm_up", lambda *_: None)
    monkeypatch.setattr(runner, "command_of", command_of)


@pytest.mark.usefixtures("quick", "fresh_registry")
def test_a_rehearsal_with_a_plugin_leaves_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "plugin.py").write_text(PLUGIN)
    (tmp_path / "mine" / SETTINGS).write_text("comm_compress: entered\nmax_steps: 90\n")
    out = tmp_path / "out"
    words = ["--track", "200mbit", "--rehearse", "--entry", str(tmp_path / "mine"), "--out", str(out)]
    assert command.main([*words, "--by", "me", "--", "--learning_rate", "0.003"]) == 0
    entry = read(out)
    assert dict(entry.race.own) == {"comm_compress": "entered", "learning_rate": 0.003}
    assert entry.race.plugin is not None
    assert entry.header["by"] == "me"
    assert [len(entry.rows_of(arm)) for arm in (ENTRY, "none", "bf16 + bf16")] == [2, 1, 1]
    assert len(list((out / LOGS).glob("*.txt"))) == len(entry.rows) == 4
    assert not list(out.glob("rows.jsonl.*"))
    for file in (file for file in out.rglob("*") if file.is_file()):  # whoever publishes it keeps their folders' names
        assert str(tmp_path) not in file.read_text(), file
    said = capsys.readouterr().out
    assert "times as fast as none" in said
    assert records.read_all(tmp_path) == ([], [])
    with pytest.raises(SystemExit) as ended:  # a folder is one session
        command.main(words)
    assert ended.value.code == 2


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--model", "gpt2-mini"], "model: fixed by the task"),
        (["--seed", "3"], "seed: fixed by the task"),
        (["--val_fraction", "0.5"], "val_fraction: fixed by the task"),
        (["--method", "bf16 + bf16"], "settings of the baseline"),
        (["--method", "int3"], "int3"),
        (["--learning_rate", "-1"], "learning_rate"),
    ],
)
def test_what_the_rules_forbid_is_refused_before_anything_runs(
    flags: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        command.main(["--track", "200mbit", "--rehearse", "--out", str(out), "--", *flags])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.usefixtures("quick")
def test_without_a_link_there_is_no_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--track", "200mbit", "--out", str(tmp_path / "out"), "--", "--method", "int8"])
    assert "emulated link: no root" in capsys.readouterr().err


def test_records_are_ordered_by_their_lead_over_bf16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    honest(tmp_path / "200mbit" / "first")
    slower = honest(tmp_path / "200mbit" / "second")
    honest(tmp_path / "missed")

    def slow(_: int, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "train_time_s": 1.2 * row["train_time_s"]} if of_entry(row) else row

    def missed(number: int, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "val_loss": row["val_loss"] + 0.2 * (number % 2)} if of_entry(row) else row

    changed(slower, slow)
    changed(tmp_path / "missed", missed)
    found, left_out = records.read_all(tmp_path)
    (title, table), *others = records.tables(found).items()
    assert title == "200mbit, 2 ranks"
    assert not others
    assert [row[1] for row in table[1:]] == ["first (a test)", "second (a test)"]
    assert left_out == ["missed: its loss is not below the target with p < 0.01"]
    assert command.main(["records", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "first (a test)" in shown.out
    assert "left out: missed" in shown.err
    assert "| 1 | first (a test) |" in records.page(found)


def test_the_page_of_records_is_that_of_the_committed_entries() -> None:
    found, left_out = records.read_all(records.RECORDS)
    assert not left_out
    assert records.PAGE.read_text() == records.page(found), "fsdp-lab speedrun records --page"


def test_a_strangers_name_breaks_no_table(tmp_path: Path) -> None:
    folder = honest(tmp_path / "mine", on_other_track("200mbit"))
    said = json.loads((folder / "entry.json").read_text())
    (folder / "entry.json").write_text(json.dumps({**said, "by": "a | b\n<script>\x1b[2J"}))
    found, _ = records.read_all(tmp_path)
    (table,) = records.tables(found).values()
    assert not {"|", "<", "\n", "\x1b"} & set("".join(table[1]))
