"""A name that no row has is refused by every command that takes it, with the nearest one, before anything is made."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.analysis.planted_rows import arm, fair, write

CLAIM = ["--arm", "int8 + int8", "--bits", "24", "--margin", "1"]
COMMANDS = {"claim": CLAIM, "tables": [], "checks": [], "report": ["--out", "report"]}


def ended(command: str, words: list[str]) -> int:
    main = importlib.import_module(f"analysis.{command}" + ".__main__" * (command != "claim")).main
    try:
        code: int = main(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    return code


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--baseline", "nonee"], ["--baseline nonee", "did you mean 'none'?", "'int8 + int8'"]),
        (["--baseline", "int8 + itn8"], ["did you mean 'int8 + int8'?"]),
        (["--select", "sede=1"], ["select sede", "did you mean 'seed'?"]),
        (["--select", "learning_rat=null"], ["did you mean 'learning_rate'?"]),
        (["--tuned", "learning_rat"], ["--tuned learning_rat", "did you mean 'learning_rate'?"]),
    ],
)
def test_every_command_refuses_it(
    command: str,
    flags: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", fair())
    assert ended(command, ["rows.jsonl", *COMMANDS[command], *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words), line
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]  # nothing was drawn


def test_a_claim_about_an_arm_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", fair())
    assert ended("claim", [str(file), *CLAIM, "--arm", "int8 + in8"]) == 2
    assert "no arm 'int8 + in8'; did you mean 'int8 + int8'?" in capsys.readouterr().err


def test_a_method_of_several_arms_is_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [*arm("int8", parameters="int4"), *arm("int8", parameters="bf16")]
    file = write(tmp_path / "rows.jsonl", both)
    assert ended("tables", [str(file), "--baseline", "int8"]) == 2
    assert "one of those with it: 'int8 + int4', 'int8 + bf16'" in capsys.readouterr().err


def test_rows_without_the_default_baseline_are_no_mistake(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [*arm("int8"), *arm("bf16")])
    assert ended("tables", [str(file)]) == 0
    assert ended("checks", [str(file)]) == 1  # which is a finding
