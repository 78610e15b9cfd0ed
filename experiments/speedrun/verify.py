"""Does an entry hold? By its own files, which reads no code of the entry; and by running it again, which runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

from experiments.speedrun.checks import files, order_of_tokens, outcome, same_task, session, traffic
from experiments.speedrun.entry import PLUGIN, Entry, read
from experiments.speedrun.score import Score, score
from experiments.speedrun.task import BF16, ENTRY, NONE, TASK, Task

CHECKS: dict[str, Callable[[Entry], Iterator[str]]] = {
    "files": files.complaints,
    "task": same_task.complaints,
    "tokens": order_of_tokens.complaints,
    "bytes": traffic.complaints,
    "session": session.complaints,
    "outcome": outcome.complaints,
}
_BYTES, _TIME = 0.02, 0.85
"""A second run may send so much more or less a step, and must be at least so many times as fast (relative to bf16, on
the same kind of processor) as the entry says."""


def from_files(folder: Path, task: Task = TASK) -> list[tuple[str, str]]:
    """Pairs of check and complaint; none where the entry holds. ValueError: ``folder`` is no entry to this task."""
    entry = read(folder, task)
    return [(name, complaint) for name, check in CHECKS.items() for complaint in check(entry)]


def score_of(entry: Entry) -> Score:
    """The score of an entry's rows. ValueError where nothing follows from them."""
    return score(entry.task, {arm: entry.rows_of(arm) for arm in (ENTRY, NONE, BF16)})


def against_a_second_run(entry: Entry, again: Entry) -> list[str]:
    """What a second run, with other seeds, says against an entry.

    Its mean loss must not exceed the target: an entry that holds by p < 0.01 has room for chance, so it need not be
    proved a second time. Bytes are those of the entry on any machine; its lead over bf16 is compared where the
    processors are of one kind."""
    first, second = score_of(entry), score_of(again)
    said = []
    if second.arms[ENTRY].loss.mean > entry.task.target:
        said.append(
            f"with other seeds its loss is {second.arms[ENTRY].loss.mean:.4f} over {second.arms[ENTRY].loss.n} runs, "
            f"above the target {entry.task.target:g}"
        )
    for arm in first.arms:
        before, now = first.arms[arm].bytes_a_step, second.arms[arm].bytes_a_step
        if not math.isclose(before, now, rel_tol=_BYTES):
            said.append(f"{arm} sends {now:,.0f} bytes a step, and the entry says {before:,.0f}")
    lead, lead_now = first.faster[BF16].times, second.faster[BF16].times
    if _processor(entry) == _processor(again) and lead_now < _TIME * lead:
        said.append(f"it is {lead_now:.2f} times as fast as {BF16} here, and the entry says {lead:.2f}")
    return said


def _processor(entry: Entry) -> object:
    return (entry.rows[0].get("hardware") or {}).get("cpu")


def runs_code(entry: Entry) -> bool:
    """Does running the entry run a stranger's file?"""
    return (entry.folder / PLUGIN).exists()
