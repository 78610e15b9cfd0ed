"""The help of every command comes at once: flags are read before anything heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fsdp_lab.commands.light_help import ASKED

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """By command: its exit code, the first line of its help, and what was imported for it of `light_help.HEAVY`."""
    line = [sys.executable, "-m", "tests.fsdp_lab.commands.light_help"]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("words", ASKED)
def test_help_imports_nothing_heavy(words: str, answers: dict[str, Any]) -> None:
    answer = answers[words]
    assert answer["code"] == 0
    assert answer["first"].startswith(f"usage: fsdp-lab {words}")
    assert not answer["heavy"], (
        f"fsdp-lab {words} --help imports {', '.join(answer['heavy'])}: read the flags first, and import what does the "
        "work after parse_args, from modules beside the command's"
    )
