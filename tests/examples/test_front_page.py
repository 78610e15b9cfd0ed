"""The program on the front page runs as it stands there, on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

from tests.distributed import run_program, torchrun_environment

README = Path(__file__).resolve().parents[2] / "README.md"


def program() -> None:
    (text,) = re.findall(r"(?ms)^```python\n(.+?)^```$", README.read_text())
    exec(compile(text, str(README), "exec"), {"__name__": "__main__"})


def test_it_runs_and_prints_what_stands_there() -> None:
    code, out, err = run_program(program, [[], []], torchrun_environment(2))
    assert code == 0, err
    shown = re.findall(r"(?m)^    (\w+: \d+ calls, .*)$", README.read_text())
    assert out.splitlines() == shown
