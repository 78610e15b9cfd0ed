"""How commands end when nobody reads what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = "results/reference/all_methods.jsonl"
FAILS = "from fsdp_lab.user_errors import unix_pipes\nwith unix_pipes():\n    raise BrokenPipeError('a socket')"


def run(*words: str, stdout: int) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [["fsdp_lab.results", "show", ROWS], ["analysis.fairness", ROWS]], ids=lambda w: w[0])
def test_a_reader_that_leaves_ends_a_command_without_a_word(words: list[str]) -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    try:
        assert run("-m", *words, stdout=ours) == (141, "")
    finally:
        os.close(ours)


def test_another_broken_pipe_is_an_error_like_any_other() -> None:
    code, said = run("-c", FAILS, stdout=subprocess.PIPE)
    assert code == 1
    assert "BrokenPipeError: a socket" in said


def test_every_command_ends_like_that() -> None:
    endings = {
        path: path.read_text().partition('if __name__ == "__main__":\n')[2].split("\n")[0].strip()
        for package in ("fsdp_lab", "experiments", "analysis")
        for path in (ROOT / package).rglob("*.py")
    }
    commands = {path: first for path, first in endings.items() if first}
    ranks = {"train.py", "stream.py", "step_times.py", "collective_times.py", "launch.py"}  # write to files and sockets
    others = {path for path, first in commands.items() if path.name not in ranks and first != "with unix_pipes():"}
    assert not others
    assert len(commands) > 20
