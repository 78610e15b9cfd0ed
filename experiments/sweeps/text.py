"""Durations and tables for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def duration(seconds: float) -> str:
    """Seconds as text: ``48 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def aligned(table: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Rows of text, the first being the heading; columns named in ``right`` are set to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            text.rjust(width) if head in right else text.ljust(width)
            for text, width, head in zip(row, widths, table[0], strict=True)
        ]
        lines.append("\n" + "  ".join(cells).rstrip())
    return "".join(lines)
