"""Checkpoints of a run that was stopped, spoilt before the same command goes on."""

from __future__ import annotations

import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from experiments.faults.hostile.case import Case, Make
from experiments.faults.hostile.limited_process import run_limited, trained


def _words(out: Path) -> list[str]:
    return trained(out, "--run_name", "x", "--save_steps", "2")


_ONE = threading.Lock()  # cases may be made at once


@cache
def _stopped() -> tempfile.TemporaryDirectory[str]:
    """A run of four steps with a checkpoint at the second, as if it had been killed after that."""
    folder = tempfile.TemporaryDirectory()
    out = Path(folder.name) / "out"
    ended = run_limited(_words(out), 8000, 600)
    if ended.code != 0:
        raise RuntimeError(f"the run whose checkpoints are to be spoilt failed:\n{ended.output}")
    return folder


def _resumed(spoil: Callable[[Path], None]) -> Make:
    def make(folder: Path) -> list[str]:
        with _ONE:
            stopped = _stopped()
        shutil.copytree(Path(stopped.name) / "out", folder / "out", symlinks=True)
        checkpoints = folder / "out" / "runs" / "x" / "checkpoints"
        (checkpoints / "finished").unlink(missing_ok=True)
        for step in sorted(checkpoints.glob("step-*")):
            spoil(step)
        return _words(folder / "out")

    return make


class _Trap:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def _flipped(name: str) -> Callable[[Path], None]:
    def spoil(step: Path) -> None:
        path = next(step.rglob(name))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return spoil


def _written(name: str, content: bytes) -> Callable[[Path], None]:
    def spoil(step: Path) -> None:
        next(step.rglob(name)).write_bytes(content)

    return spoil


def _trapped(step: Path) -> None:
    (step / "rank-0.pt").write_bytes(pickle.dumps(_Trap(step.parents[4] / "sprung")))


CASES = [
    Case("checkpoints", name, _resumed(spoil), says, never=("sprung",), memory_mb=8000)
    for name, spoil, says in (
        ("a byte of the weights flipped", _flipped("*.distcp"), "distcp"),
        ("a manifest that is a list", _written("manifest.json", b"[]"), "manifest.json"),
        ("a manifest nested 100,000 deep", _written("manifest.json", b"[" * 100_000), "manifest.json"),
        ("a pickle with a trap as a rank's state", _trapped, "rank-0.pt"),
    )
]
