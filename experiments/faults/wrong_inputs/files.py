"""Files that cases find: results rows, and things that are not what a flag asks for."""

from __future__ import annotations

import shutil
from pathlib import Path

from experiments.faults.wrong_inputs.case import Make

ROOT = Path(__file__).resolve().parents[3]
_ROWS = ROOT / "results" / "reference" / "fresh_weights" / "bar.jsonl"


def rows(folder: Path) -> None:
    """rows.jsonl: real rows of several methods."""
    shutil.copyfile(_ROWS, folder / "rows.jsonl")


def text(name: str, content: str) -> Make:
    """A file of that name with that text."""

    def make(folder: Path) -> None:
        (folder / name).write_text(content, encoding="utf-8")

    return make


def folder_named(name: str) -> Make:
    """An empty folder of that name."""

    def make(folder: Path) -> None:
        (folder / name).mkdir()

    return make


def both(*makers: Make) -> Make:
    """A maker that runs ``makers`` in the same folder, one after another."""

    def make(folder: Path) -> None:
        for maker in makers:
            maker(folder)

    return make
