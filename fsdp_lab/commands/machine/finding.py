"""One thing that `fsdp-lab doctor` has looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """``said``: what was found. ``remedy``: how to get what is missing. ``stops_training``: without it, none."""

    name: str
    ok: bool
    said: str
    remedy: str = ""
    stops_training: bool = False


def needed(name: str, ok: bool, said: str, remedy: str) -> Finding:
    """A finding without which training cannot work; the remedy is kept only where it is missing."""
    return Finding(name, ok, said, "" if ok else remedy, stops_training=not ok)


def useful(name: str, ok: bool, said: str, remedy: str = "") -> Finding:
    """A finding that training works without; the remedy is kept only where it is missing."""
    return Finding(name, ok, said, "" if ok else remedy)
