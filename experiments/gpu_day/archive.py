"""What a stage left: is it all there, can it be read; and all of it in one file of a limited size."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from fsdp_lab.files.atomic import atomic_file

MOST_BYTES = 16 * 1000 * 1000
_KEPT = (".json", ".jsonl", ".md", ".txt", ".gz", ".png", ".yaml")
_LEFT_OUT = ("training", "tiny_target", "target", "checkpoints")  # folders: weights and checkpoints


def complaints(folder: Path, results: Sequence[str]) -> list[str]:
    """What is wrong with the files that a stage should have left; empty: all are there and readable."""
    return [said for name in results if (said := _complaint(folder / name, name))]


def pack(folder: Path, path: Path) -> list[str]:
    """Write what is worth keeping of ``folder`` to the zip ``path``; returns the names that had to be left out.

    The largest files are left out until the rest, compressed, has at most `MOST_BYTES` bytes.
    """
    files = sorted((p for p in folder.rglob("*") if _is_kept(p, folder)), key=lambda p: p.stat().st_size)
    left_out: list[str] = []
    while True:
        with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for kept in files:
                archive.write(kept, kept.relative_to(folder))
        if path.stat().st_size <= MOST_BYTES or not files:
            return left_out
        left_out.append(str(files.pop().relative_to(folder)))


def _is_kept(path: Path, folder: Path) -> bool:
    inside = path.relative_to(folder).parts[:-1]
    return path.is_file() and path.suffix in _KEPT and not any(part in _LEFT_OUT for part in inside)


def _complaint(path: Path, name: str) -> str | None:
    if not path.is_file():
        return f"{name} is not there"
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
        if not text.strip():
            return f"{name} is empty"
        if path.suffix == ".jsonl":
            for line in text.splitlines():
                json.loads(line)
        elif ".json" in path.suffixes:
            json.loads(text)
    except (OSError, EOFError, ValueError) as error:  # of both UTF-8 and JSON
        return f"{name} cannot be read: {error}"
    return None
