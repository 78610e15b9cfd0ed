"""Are the bytes those that left the interface, and could the link carry them in that time?"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.speedrun.entry import Entry, Row

_LEAST, _MOST = 0.985, 1.06
"""What the interface may have counted of the claimed payload: TCP/IP headers are 4.6 % of full packets, gloo's own
messages come on top (`_A_STEP`), and some steps, which are not counted, may send less than others."""
_A_STEP = 40_000  # bytes of headers and messages in a step, whatever is in them: a few hundred messages of gloo


def complaints(entry: Entry) -> Iterator[str]:
    """Rows whose bytes the interface, the link's rate or the loss curve contradicts."""
    for row in entry.rows:
        if row["status"] == "ok" and row.get("link_rate_asked"):
            for complaint in (*_interface(row), *_rate(entry, row)):
                yield f"{row['run_name']}: {complaint}"


def _interface(row: Row) -> Iterator[str]:
    if row.get("bytes_trusted") is not True:
        yield "the trainer itself did not find the claimed bytes on the interface (bytes_trusted)"
    counted, steps = row.get("interface_bytes_total"), row.get("interface_steps")
    if not counted or not steps:
        yield "does not say what its interface sent"
        return
    claimed = row["bytes_compressed_total"] / row["steps"]
    if not _LEAST * claimed <= counted / steps <= _MOST * claimed + _A_STEP:
        yield (
            f"claims {claimed:,.0f} bytes a step, and its interface sent {counted / steps:,.0f}, "
            "headers included: these do not go together"
        )


def _rate(entry: Entry, row: Row) -> Iterator[str]:
    least = 8 * row["bytes_compressed_total"] / entry.race.track.bits_per_s
    if (row.get("train_time_s") or 0) < least:
        total = f"{row['bytes_compressed_total']:,} bytes"
        yield f"{total} take {least:.1f} s on this link, longer than it says that it trained"
