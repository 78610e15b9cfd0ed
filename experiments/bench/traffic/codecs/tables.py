"""The measurements as tables in Markdown: our methods', and each beside its peers."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.bench.traffic.codecs.timing import ENCODE, OPERATIONS, Timing
from experiments.bench.traffic.codecs.variants import label

ALIKE = 1.05  # medians of one run differ by so much without a reason


def by_encode(rows: Sequence[Timing]) -> list[Timing]:
    """Our rows, methods that encode nearest to memory speed first; the rows of a method stay together."""
    ours = [row for row in rows if not row.implementation]
    fraction = {label(r.method, r.config): r.roofline or 0 for r in reversed(ours) if r.operation == ENCODE}

    def place(row: Timing) -> tuple[float, str, int]:
        name = label(row.method, row.config)
        return -fraction[name], name, OPERATIONS.index(row.operation)

    return sorted(ours, key=place)


def table(rows: Sequence[Timing]) -> str:
    """Our rows as a table in Markdown."""
    ours = by_encode(rows)
    first = ours[0].threads
    several = any(row.threads != first for row in ours)
    base = {_name(row): row.seconds for row in ours if row.threads == first}
    heads = ["method", "operation", "GB/s", "x memcpy", "roofline", "ms", *(["threads", "speed-up"] if several else [])]
    lines = []
    for row in ours:
        cells = [label(row.method, row.config), row.operation, *map(_number, (row.gb_s, row.memcpy_ratio))]
        cells += [_number(row.roofline or 0), _milliseconds(row)]
        if several:
            cells += [str(row.threads), f"{base[_name(row)] / row.seconds:.2f}"]
        lines.append(cells)
    return _markdown(heads, lines, left=2)


def peer_table(rows: Sequence[Timing], missing: set[str]) -> str:
    """Each of our operations beside every peer's as a table in Markdown; nothing if there are no peers."""
    ours = {(_name(row), row.threads): row for row in rows if not row.implementation}
    lines = []
    for peer in rows:
        own = ours.get((_name(peer), peer.threads))
        if peer.implementation and own is not None:
            cells = [label(peer.method, peer.config), peer.operation, peer.implementation]
            cells.append(_verdict(own.seconds, peer.seconds))
            lines.append([*cells, _milliseconds(own), _milliseconds(peer), str(peer.threads)])
    heads = ["method", "operation", "peer", "ours is", "ours ms", "peer ms", "threads"]
    blocks = ["\n" + _markdown(heads, lines, left=4)] if lines else []
    if missing:
        blocks.append("\nNot installed: " + ", ".join(sorted(missing)) + ".")
    return "\n".join(blocks)


def _verdict(ours: float, theirs: float) -> str:
    ratio = theirs / ours
    if 1 / ALIKE < ratio < ALIKE:
        return "as fast"
    return f"{ratio:.1f} times faster" if ratio > 1 else f"{1 / ratio:.1f} times SLOWER"


def _name(row: Timing) -> tuple[str, str]:
    return label(row.method, row.config), row.operation


def _milliseconds(row: Timing) -> str:
    return f"{_number(1e3 * row.seconds)} ({_number(1e3 * row.q1)}-{_number(1e3 * row.q3)})"


def _number(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.2g}"


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> str:
    rule = ["---" if i < left else "---:" for i in range(len(heads))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, rule, *lines])
