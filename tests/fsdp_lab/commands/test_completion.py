"""Completion on Tab, as bash does it: the printed script with words that are being typed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fsdp_lab.commands.completion import script

HELP = "usage: fsdp-lab x [--rate R] [--dry_run]\\n  -h, --help  shown\\n  --rate R, --per-node N   such-as --rate"
STUB = f'fsdp-lab() {{ echo "$*" >>"$CALLS"; printf "{HELP}\\n"; }}\n'


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Where the stand-in for `fsdp-lab` writes down what it is asked."""
    return tmp_path / "calls"


def offered(calls: Path, *words: str, times: int = 1) -> set[str]:
    """What Tab offers for the last of ``words``, which may be empty."""
    typed = " ".join(f'"{word}"' for word in ("fsdp-lab", *words))
    press = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _fsdp_lab\n" * times
    program = f'CALLS={calls}\n{STUB}{script("bash")}{press}printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-uc", program], capture_output=True, text=True)
    assert not done.stderr
    return set(done.stdout.split())


def test_commands_are_completed(calls: Path) -> None:
    assert offered(calls, "re") == {"report", "results"}
    assert {"train", "bench", "eagle", "--version"} <= offered(calls, "")
    assert offered(calls, "bench", "c") == {"codecs", "checkpoint", "collectives"}
    assert offered(calls, "links", "") == {"bottleneck", "calibrate", "matrix"}
    assert not calls.exists(), "no Python was started"


def test_methods_are_completed_where_one_is_wanted(calls: Path) -> None:
    assert offered(calls, "methods", "top") == {"topk"}
    assert offered(calls, "train", "--comm-compress", "to") == {"topk"}
    assert offered(calls, "systems", "sdp") == {"sdp4bit", "sdp4bit-intra", "sdp4bit-two-levels"}
    assert offered(calls, "train", "--system", "dilo") == {"diloco"}
    assert offered(calls, "sweep", "lengt") == {"lengths"}
    assert offered(calls, "sweep", "mine.y") == set(), "bash then completes names of files"
    assert offered(calls, "train", "--config", "to") == set(), "bash then completes names of files"


def test_flags_are_asked_once_of_the_command_itself(calls: Path) -> None:
    flags = {"--rate", "--dry_run", "--help", "--per-node"}
    assert offered(calls, "links", "matrix", "-", times=2) == flags
    assert calls.read_text() == "links matrix --help\n"
    assert offered(calls, "report", "rows.jsonl", "--r") == {"--rate"}
    assert calls.read_text().endswith("\nreport --help\n")


def test_zsh_understands_it() -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("no zsh here")
    subprocess.run([zsh, "-fc", script("zsh") + "whence _fsdp_lab"], check=True)
