"""One session on one machine: the same code, one run after the other, in the order that the race gives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from experiments.speedrun.entry import Entry, Row

_LONGEST_PAUSE_S = 300  # between two runs
_SLACK_S = 2.0  # time_utc has whole seconds
_RANKS_APART = 0.05  # a curve has the first rank's bytes, a row the mean of all: entropy-coded shards differ in length
_SAME = ("git_commit", "git_dirty", "versions", "hardware")


def complaints(entry: Entry) -> Iterator[str]:
    """Runs on other machines or with other code, at the same time, out of turn, or long apart; times that do not add
    up."""
    rows = [row for row in entry.rows if row["status"] == "ok"]
    for field in _SAME:
        if len({json.dumps(row.get(field), sort_keys=True) for row in rows}) > 1:
            yield f"{field} is not the same for all runs: they are not of one session"
    if entry.rows and entry.rows[0].get("git_dirty"):
        yield "the checkout had changes that no commit has, so nobody else can run the same code"
    cores = {(row.get("hardware") or {}).get("cores") for row in rows}
    if cores - {entry.race.ranks}:
        yield f"ranks were given {_words(cores)} cores; the command gives each one"
    yield from _order(entry, rows)
    yield from _turns(rows)
    for row in rows:
        for complaint in _times(row, entry.curves.get(str(row["run_name"]), ())):
            yield f"{row['run_name']}: {complaint}"


def _order(entry: Entry, rows: Sequence[Row]) -> Iterator[str]:
    order = [(entry.arm_of(row), row["seed"]) for row in rows]
    if order != entry.race.order():
        yield "the arms did not take turns in the order that the command gives them"


def _turns(rows: Sequence[Row]) -> Iterator[str]:
    try:
        ends = [datetime.fromisoformat(row["time_utc"]).timestamp() for row in rows]
    except (ValueError, TypeError):
        yield "time_utc is no time"
        return
    for (before, row), (previous, end) in zip(pairwise(rows), pairwise(ends), strict=True):
        pause = end - (row.get("wall_time_s") or 0) - previous
        if pause < -_SLACK_S:
            yield f"{row['run_name']} began {-pause:.0f} s before {before['run_name']} ended"
        elif pause > _LONGEST_PAUSE_S:
            yield f"{row['run_name']} began {pause:.0f} s after the run before it: this is not one session"


def _times(row: Row, curve: Sequence[Row]) -> Iterator[str]:
    """A row's times against each other, and against the curve that was written while it trained."""
    trained, wall = row.get("train_time_s") or 0.0, row.get("wall_time_s") or 0.0
    if not 0 < trained <= wall:
        yield f"it trained for {trained:.1f} s in the {wall:.1f} s that it lasted"
    timed = (row.get("step_time_ms_mean") or 0.0) * (row.get("steps_timed") or 0) / 1e3
    if timed > trained * 1.001:
        yield f"its timed steps take {timed:.1f} s together, and it says that all took {trained:.1f} s"
    lines = [line for line in curve if "train_loss" in line]
    if not lines:
        yield "has no loss curve"
        return
    if [line.get("step") for line in lines] != _logged(row):
        yield "its curve does not have the lines of its steps"
        return
    seconds = [float(line.get("train_seconds") or 0.0) for line in lines]
    if sorted(set(seconds)) != seconds:
        yield "the seconds of its curve do not grow"
    if abs(seconds[-1] - trained) > 1e-3 * trained:
        yield f"its curve ends after {seconds[-1]:.2f} s of training, and the row says {trained:.2f} s"
    if not _is_close(curve[-1].get("sent_bytes"), row.get("bytes_compressed_total"), _RANKS_APART):
        yield "its curve ends with other bytes than its row"


def _logged(row: Row) -> list[int]:
    every, steps = row["config"].get("log_interval", 10), row["steps"]
    return sorted({*range(every, steps + 1, every), steps})


def _is_close(one: Any, other: Any, share: float) -> bool:
    return all(isinstance(x, int | float) for x in (one, other)) and abs(one - other) <= share * abs(other)


def _words(values: set[Any]) -> str:
    return " and ".join(sorted(map(str, values)))
