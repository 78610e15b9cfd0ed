"""Which runs shared their machine with another one while they were under way."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from analysis.rows.reading import Row, is_number

_MEETING_S = 2.0  # overlap that rounding to whole seconds and a program's end may cause
Span = tuple[datetime, datetime, Row]


def meetings(rows: Iterable[Row]) -> dict[int, Row]:
    """For each run that shared its machine, by `id` of its row, another run that it shared it with.

    The same row in two files is no other run. Takes as long as sorting the rows."""
    by_host: dict[str, list[Span]] = {}
    for row in rows:
        span = _span(row)
        host = (row.get("hardware") or {}).get("host")
        if span is not None and host:
            by_host.setdefault(host, []).append((*span, row))
    others: dict[int, Row] = {}
    for spans in by_host.values():
        spans.sort(key=lambda entry: entry[:2])
        for (start, end, row), before, after in zip(spans, _latest_before(spans), _next_after(spans), strict=True):
            if before is not None and before[1] > start:
                others[id(row)] = before[2]
            elif after is not None and after[0] < end:
                others[id(row)] = after[2]
    return others


def _latest_before(spans: Sequence[Span]) -> list[Span | None]:
    """For each span, the span of another run that ended last among those that began earlier."""
    spans_before: list[Span | None] = []
    latest: list[Span] = []  # the two that ended last, of two different runs
    for span in spans:
        spans_before.append(next((other for other in latest if _name(other) != _name(span)), None))
        best = sorted([*latest, span], key=lambda other: other[1], reverse=True)
        rival = next((other for other in best[1:] if _name(other) != _name(best[0])), None)
        latest = best[:1] if rival is None else [best[0], rival]
    return spans_before


def _next_after(spans: Sequence[Span]) -> list[Span | None]:
    """For each span, the next one of another run."""
    spans_after: list[Span | None] = [None]
    for span, following in itertools.pairwise(reversed(spans)):
        spans_after.append(span if _name(span) != _name(following) else spans_after[-1])
    return spans_after[::-1] if spans else []


def _name(span: Span) -> str:
    name: str = span[2]["run_name"]
    return name


def _span(row: Row) -> tuple[datetime, datetime] | None:
    """When the run was under way, shortened by what clocks may be off."""
    wall = row.get("wall_time_s")
    if not is_number(wall) or wall <= _MEETING_S:
        return None
    try:
        end = datetime.fromisoformat(row["time_utc"])
        end = end if end.tzinfo is not None else end.replace(tzinfo=UTC)
        return end - timedelta(seconds=wall - _MEETING_S), end
    except (ValueError, OverflowError):
        return None
