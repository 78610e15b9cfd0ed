"""An audit as text: who sent what, and what ledgers say about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

_WIDEST = 72  # characters of a cell


class Claim(NamedTuple):
    """The bytes that ledgers say they sent by an operation; None: stock collectives have it, no ledger counts it."""

    op: str
    sent_bytes: int | None


class Counted(Protocol):
    """What a line of the table is made of; `session.Line`."""

    op: str
    group: str
    dtype: str
    where: str
    through: str
    code: str
    calls: int
    payload_bytes: int
    sent_bytes: int
    ring_bytes: int


def table(
    lines: Sequence[Counted],
    claims: Sequence[Claim] | None,
    not_counted: Mapping[str, int],
    who: str = "this rank",
    shown: int | None = None,
) -> str:
    """Lines, sums and claims.

    ``claims`` None: no handle was given. ``who`` has sent it all. ``shown``: lines at most; sums are of all.
    """
    heads = ("collective", "group", "dtype", "calls", "payload MB", "sent MB", "on a ring", "through", "caller")
    cells = [
        (
            *(line.op, line.group, line.dtype, str(line.calls)),
            *map(_mb, (line.payload_bytes, line.sent_bytes, line.ring_bytes)),
            *(line.through, _cut(f"{line.where} {line.code}")),
        )
        for line in lines
        if line.op != "recv"  # its bytes are the sender's
    ]
    parts = [_aligned([heads, *cells[:shown]])]
    if shown is not None and len(cells) > shown:
        parts.append(f"and {len(cells) - shown} more, which send less")
    parts.append(_sums(lines, who))
    if claims is not None:
        parts.append(_claims(lines, claims))
    parts += [f"not counted: {name}, {calls} calls" for name, calls in sorted(not_counted.items())]
    return "\n".join(parts)


def _sums(lines: Iterable[Counted], who: str) -> str:
    by_package: dict[str, int] = {}
    for line in lines:
        by_package[line.through] = by_package.get(line.through, 0) + line.sent_bytes
    whole = sum(by_package.values())
    shares = [f"{_mb(b)} MB ({b / max(1, whole):.1%}) through {p}" for p, b in sorted(by_package.items())]
    return "\n".join([f"{who} sent {_mb(whole)} MB:", *(f"  {share}" for share in shares)])


def _claims(lines: Sequence[Counted], claims: Iterable[Claim]) -> str:
    """The ledgers' words, beside what was seen of comm_compress."""
    seen = sum(line.sent_bytes for line in lines if line.through == "comm_compress")
    claimed = sum(claim.sent_bytes or 0 for claim in claims)
    words = [f"the ledgers claim {_mb(claimed)} MB; comm_compress was seen to send {_mb(seen)} MB"]
    for op, sent in claims:
        stock = sum(line.sent_bytes for line in lines if line.op == op and line.through != "comm_compress")
        left = f"not compressed, and not in the ledger; stock collectives of this kind sent {_mb(stock)} MB"
        words.append(f"  {op}: " + (left if sent is None else f"{_mb(sent)} MB"))
    return "\n".join(words)


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.3f}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = range(3, 7)
    return "\n".join(
        "  ".join(
            c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
