"""The files in which a rank counts: whatever ends the process, what it had counted until then is there.

Two files a rank. ``NAME.jsonl`` says what is counted: first who counts, then a line of JSON for each `Line` (or
operator that can only be named) when it is first called. ``NAME.counts`` is mapped into memory and has four whole
numbers of 64 bits for each of these, in the same order: calls, and bytes handed over, sent, and sent on a ring. A call
changes them in place, which costs no system call, and the kernel keeps them when the process is killed.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comm_compress.integrations.audit.lines import Line

_NUMBERS = struct.Struct("<4q")
_AT_FIRST = 1024  # lines that there is room for; doubled when needed
_DESCRIBED = ("op", "group", "dtype", "where", "through", "code", "stack")


@dataclass(frozen=True)
class RankCounts:
    """What one process counted as a rank; ``has_ended``: it came to the end of Python, and not to a kill or
    `os._exit`. ``trouble``: why it stopped counting before, if it did."""

    rank: int
    world_size: int
    backend: str
    host: str
    pid: int
    has_ended: bool
    trouble: str | None
    lines: tuple[Line, ...]
    not_counted: dict[str, int]

    @property
    def sent_bytes(self) -> int:
        """What it sent to other ranks, by its backends' conventions."""
        return sum(line.sent_bytes for line in self.lines)


class Kept:
    """One rank's files in ``folder``, written as it counts. OSError where the disk takes no more."""

    def __init__(self, folder: Path, rank: int, world_size: int, backend: str) -> None:
        path = folder / f"rank{rank}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._slots: dict[tuple[str, ...], int] = {}
        self._room = 0
        self._described = os.open(path.with_suffix(".jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers = os.open(path.with_suffix(".counts"), os.O_RDWR | os.O_CREAT, 0o600)
        self._grow(_AT_FIRST)
        host, pid = os.uname().nodename, os.getpid()
        self._say({"rank": rank, "world_size": world_size, "backend": backend, "host": host, "pid": pid})

    def put(self, line: Line) -> None:
        """Write the counts of ``line`` over those that the file has of it, so that they outlive a killed rank."""
        slot = self._slots.get(line.key)
        if slot is None:
            slot = self._slot(line.key, {name: getattr(line, name) for name in _DESCRIBED})
        self._write(slot, line.calls, line.payload_bytes, line.sent_bytes, line.ring_bytes)

    def put_named(self, name: str, calls: int) -> None:
        """Write how often an operator was called that can only be named."""
        slot = self._slots.get((name,))
        if slot is None:
            slot = self._slot((name,), {"not_counted": name})
        self._write(slot, calls, 0, 0, 0)

    def end(self, trouble: str | None = None) -> None:
        """Say that the process has come to its end, or that ``trouble`` ends the counting."""
        self._say({"trouble": trouble} if trouble else {"has_ended": True})

    def _slot(self, key: tuple[str, ...], described: dict[str, Any]) -> int:
        slot = len(self._slots)
        if slot == self._room:
            self._grow(2 * self._room)
        self._say(described)
        self._slots[key] = slot
        return slot

    def _grow(self, room: int) -> None:
        # Allocated at once: a full disk is an error here, where a hole in the file would be a fatal signal later.
        os.posix_fallocate(self._numbers, 0, room * _NUMBERS.size)
        self._map = mmap.mmap(self._numbers, room * _NUMBERS.size)
        self._room = room

    def _write(self, slot: int, *numbers: int) -> None:
        _NUMBERS.pack_into(self._map, slot * _NUMBERS.size, *numbers)

    def _say(self, described: dict[str, Any]) -> None:
        os.write(self._described, json.dumps(described).encode() + b"\n")


def read(folder: Path) -> list[RankCounts]:
    """All ranks' counts in ``folder``, by rank; a rank that was started again is there as often."""
    files = [counts for path in folder.glob("rank*.jsonl") if (counts := _read(path)) is not None]
    return sorted(files, key=lambda counts: (counts.rank, counts.pid))


def troubles(folder: Path) -> list[str]:
    """Why processes that became ranks could not count at all."""
    return [path.read_text(errors="replace") for path in sorted(folder.glob("*.trouble"))]


def _read(path: Path) -> RankCounts | None:
    described = list(_whole_lines(path))
    if not described:
        return None
    numbers = _NUMBERS.iter_unpack(path.with_suffix(".counts").read_bytes())
    lines, not_counted = [], {}
    end: dict[str, Any] = {"has_ended": False, "trouble": None}
    for one in described[1:]:
        if "op" in one:
            line = Line(**one | {"stack": tuple(one["stack"])})
            line.calls, line.payload_bytes, line.sent_bytes, line.ring_bytes = next(numbers)
            lines.append(line)
        elif "not_counted" in one:
            not_counted[one["not_counted"]] = next(numbers)[0]
        else:
            end |= one
    return RankCounts(**described[0], **end, lines=tuple(lines), not_counted=not_counted)


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """What the file says; a last line that its writer did not finish is left out."""
    for text in path.read_bytes().splitlines(keepends=True):
        if text.endswith(b"\n"):
            yield json.loads(text)
