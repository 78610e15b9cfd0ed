"""All entries of a folder as a table: the fastest of each track first, each beside its own session's baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.speedrun.entry import HEADER, Entry, read
from experiments.speedrun.score import Faster, Score
from experiments.speedrun.task import BF16, ENTRY, NONE, SIGNIFICANCE, TASK, TRACKS, Task
from experiments.speedrun.verify import score_of
from experiments.sweeps.text import aligned
from fsdp_lab.settings.user_errors import printable

HEAD = (
    *("", "entry", "communication", "steps", "MB a step", "loss", "p", "s", "none, s", "bf16, s"),
    *("as fast as none", "as fast as bf16", "processor"),
)
_ROOT = Path(__file__).resolve().parents[2]
RECORDS = _ROOT / "results" / "speedrun"
PAGE = _ROOT / "docs" / "comparing" / "speedrun-records.md"


@dataclass(frozen=True)
class Record:
    """An entry with what follows from its rows, computed anew."""

    entry: Entry
    score: Score

    @property
    def lead(self) -> float:
        """How many times as fast as bf16: what records are ordered by."""
        return self.score.faster[BF16].times


def read_all(folder: Path, task: Task = TASK) -> tuple[list[Record], list[str]]:
    """The entries below ``folder`` that reached the target, and why others are left out. Rehearsals are passed over."""
    records, left_out = [], []
    for path in sorted(folder.rglob(HEADER)):
        try:
            entry = read(path.parent, task)
            if entry.task.is_rehearsal:
                continue
            record = Record(entry, score_of(entry))
        except ValueError as error:
            left_out.append(f"{path.parent.name}: {error}")
            continue
        if record.score.reached:
            records.append(record)
        else:
            left_out.append(f"{path.parent.name}: its loss is not below the target with p < {SIGNIFICANCE:g}")
    return records, left_out


def tables(records: Sequence[Record]) -> dict[str, list[list[str]]]:
    """A table for every track and number of ranks that has records: its title, and rows with the heading first."""
    by_title: dict[str, list[list[str]]] = {}
    for track in TRACKS.values():
        for ranks in sorted({record.entry.race.ranks for record in records}):
            of_track = [r for r in records if r.entry.race.track == track and r.entry.race.ranks == ranks]
            if of_track:
                ordered = sorted(of_track, key=lambda record: -record.lead)
                lines = [_line(place, record) for place, record in enumerate(ordered, start=1)]
                by_title[f"{track.name}, {ranks} ranks"] = [list(HEAD), *lines]
    return by_title


def text(records: Sequence[Record]) -> str:
    """The records as tables for a terminal."""
    right = set(HEAD) - {"entry", "communication", "processor"}
    parts = [f"{title}{aligned(table, right)}" for title, table in tables(records).items()]
    return "\n\n".join(parts) or "no records yet: docs/comparing/speedrun.md says how one is made"


def page(records: Sequence[Record], task: Task = TASK) -> str:
    """The page of the documents with all records."""
    parts = [
        "# Speedrun records",
        "Made by `fsdp-lab speedrun records --page` from the folders in `results/speedrun/`; the rules are in "
        "[speedrun.md](speedrun.md).",
        f"Task `{task.name}`: a mean validation loss of at most {task.target:g} nats a token, p < {SIGNIFICANCE:g}. "
        "Times are seconds of optimizer steps. Machines differ, so entries are ordered by how many times as fast they "
        "are as `bf16 + bf16` in the same session (in brackets: 95 % intervals).",
    ]
    for title, table in tables(records).items():
        marks = ["---:" if head not in ("entry", "communication", "processor") else "---" for head in HEAD]
        lines = ["| " + " | ".join(row) + " |" for row in (table[0], marks, *table[1:])]
        parts += [f"## {title}", "\n".join(lines)]
    if not records:
        parts.append("No records yet.")
    return "\n\n".join(parts) + "\n"


def _line(place: int, record: Record) -> list[str]:
    entry, arms = record.entry, record.score.arms
    own, name = arms[ENTRY], entry.folder.name
    by = entry.header.get("by")
    p = "-" if own.p is None else f"{own.p:.1g}"
    return [
        str(place),
        _plain(f"{name} ({by})" if by else name),
        _plain(str(entry.header.get("label"))),
        str(own.steps),
        f"{own.bytes_a_step / 1e6:.3g}",
        f"{own.loss.mean:.4f}",
        p,
        *(f"{arms[arm].seconds.mean:.1f}" for arm in (ENTRY, NONE, BF16)),
        _times(record.score.faster[NONE]),
        _times(record.score.faster[BF16]),
        _plain(str((entry.rows[0].get("hardware") or {}).get("cpu"))),
    ]


def _times(faster: Faster) -> str:
    return f"{faster.times:.2f}" + ("" if faster.low is None else f" [{faster.low:.2f}, {faster.high:.2f}]")


def _plain(said: str) -> str:
    """Text from a stranger, for a cell of a table."""
    return printable(said).replace("|", "/").replace("<", "(").replace(">", ")")[:80]
