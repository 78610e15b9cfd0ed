"""Every wrong input of the table is answered as promised; and answers that are not so are seen to be none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.faults.wrong_inputs.__main__ import CASES
from experiments.faults.wrong_inputs.case import Case, Seen, table
from experiments.faults.wrong_inputs.in_process import tried
from fsdp_lab.commands.table import COMMANDS
from fsdp_lab.settings.flags import as_typed


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.command}: {case.mistake}")
def test_every_mistake_is_answered_with_one_message(case: Case) -> None:
    seen = tried(case)
    assert not seen.broken, seen.message


def test_the_table_has_most_commands_and_every_mistake_once() -> None:
    mistakes = [(case.command, case.mistake) for case in CASES]
    assert len(set(mistakes)) == len(mistakes) >= 100
    assert len({command.words for command in COMMANDS} & {case.command for case in CASES}) >= 40


KEPT = Seen(
    Case("x", "a mistake", (), "--flag", "'a'", "at least 1"), 2, "x: --flag: got 'a', wants at least 1", "", ()
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"code": 1}, "exit code 1, not 2"),
        ({"code": None}, "exit code None, not 2"),
        ({"message": f"{KEPT.message}\nand another"}, "not one message"),
        ({"message": ""}, "not one message"),
        ({"message": f"{KEPT.message}\n Traceback (most recent call last)"}, "a traceback"),
        ({"message": "x: --flag: got 'a'"}, "does not say 'at least 1'"),
        ({"output": "begun"}, "writes 'begun' on stdout"),
        ({"changed": ("rows.jsonl",)}, "rows.jsonl is not what it was"),
    ],
)
def test_an_answer_that_breaks_a_promise_is_told_and_comes_first(change: dict[str, object], reason: str) -> None:
    assert KEPT.broken == []
    worse = replace(KEPT, **change)  # type: ignore[arg-type]
    assert reason in worse.broken
    lines = table([KEPT, worse], "it").splitlines()
    assert "2 mistakes, 1 promises broken" in lines[2]
    assert reason in lines[6]
    assert lines[7].endswith("| kept |")


def test_what_a_command_changes_in_its_folder_is_seen() -> None:
    def make(folder: Path) -> None:
        (folder / "rows.jsonl").write_text('{"schema_version": 1}\n')

    case = Case("results", "none: it writes", ("migrate", "rows.jsonl", "--out", "new.jsonl"), "", "", "", make)
    assert tried(case).changed == ("new.jsonl",)


def test_the_process_is_as_before_and_nothing_is_started() -> None:
    def state() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)]
        return Path.cwd(), sys.argv, sys.path[:], dict(os.environ), handlers, as_typed("python -m analysis.report")

    before = state()
    seen = tried(Case("audit", "none", ("--", sys.executable, "-c", "print(1)"), "", "", ""))
    assert (seen.code, "started" in seen.message) == (None, True)
    assert state() == before
    assert subprocess.run(["true"], check=False).returncode == 0
