"""An entry that holds, made of recorded rows behind 200 Mbit/s, and the ways to change one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from experiments.speedrun import entry as entries
from experiments.speedrun.checks.same_task import _digest
from experiments.speedrun.entry import CURVES, LOGS, ROWS, Entry
from experiments.speedrun.race import Race
from experiments.speedrun.score import score
from experiments.speedrun.task import BF16, ENTRY, NONE, TASK, TRACKS
from fsdp_lab import results
from fsdp_lab.results.derived import derived
from fsdp_lab.results.migrate import migrate

ROOT = Path(__file__).resolve().parents[3]
Row = dict[str, Any]
METHODS = {NONE: ("none", "none"), BF16: ("bf16", "bf16"), ENTRY: ("int4", "delta")}
OWN = {"comm_compress": "int4", "comm_config_json": {"hadamard": True}, "param_compress": "delta"}
RACE = Race(TASK, TRACKS["200mbit"], 2, 4, OWN)
TOKENS = 25_400  # of the validation split; tests say that the task has so many
_NOISE = (-0.004, 0.002, 0.003, -0.001)
_WORK = ("bytes_raw_total", "bytes_compressed_total", "comm_time_ms_total", "train_time_s")
_BY_OP = ("bytes_raw_by_op", "bytes_compressed_by_op", "elements_by_op", "comm_time_ms_by_op")


@cache
def recorded(arm: str) -> str:
    """A real row of the arm behind the track's link, as text."""
    for line in (ROOT / "results" / "reference" / "links" / "links.jsonl").read_text().splitlines():
        row = json.loads(line)
        methods = row["compress_method"], row["param_compress_method"]
        if methods == METHODS[arm] and row["link_rate_asked"] == RACE.track.bits_per_s:
            return line
    raise LookupError(arm)


def digest(seed: int, rows: int, batches: int) -> str:
    """What stands in for the digest of the sequences."""
    return f"{seed:016x}{rows:08x}{batches:08x}"


def row_of(arm: str, seed: int, number: int, ends: datetime, race: Race = RACE) -> Row:
    """One run of the race: a recorded one, with the task's steps, text and settings."""
    row: Row = migrate(json.loads(recorded(arm)))
    settings = race.settings(arm) | {"seed": seed}
    steps = settings["max_steps"]
    share = steps / row["steps"]
    row |= {name: round(row[name] * share) if "bytes" in name else row[name] * share for name in _WORK}
    row |= {name: {op: round(value * share) for op, value in row[name].items()} for name in _BY_OP}
    for name in ("compress_time_ms_total", "decompress_time_ms_total", "extra_collectives_time_ms_total"):
        row[name] = None if row[name] is None else row[name] * share
    loss = race.task.target - 0.05 + _NOISE[number % len(_NOISE)]
    sequences = settings["batch_size"] * race.ranks
    row |= {
        **race.task.facts,
        "run_name": f"{arm.replace(' ', '')}-{number}",
        "time_utc": ends.isoformat(timespec="seconds"),
        "config": settings,
        "seed": seed,
        "steps": steps,
        "batch_size": settings["batch_size"],
        "tokens_seen": steps * sequences * settings["max_length"],
        "data_digest": digest(seed, sequences, steps),
        "val_tokens": TOKENS,
        "val_loss": loss,
        "val_ppl": math.exp(loss),
        "steps_timed": steps - 5,
        "step_time_ms_mean": 1e3 * row["train_time_s"] / steps,
        "interface_steps": steps,
        "interface_bytes_total": round(row["interface_bytes_total"] / row["interface_steps"] * steps),
        "wall_time_s": row["train_time_s"] + 20,
        "hardware": {**row["hardware"], "cores": race.ranks},
        "git_dirty": False,
        "value_bytes": None,
        "index_bytes": None,
        "metadata_bytes": None,
    }
    row["config_hash"] = _digest(row)
    return row | {name: value for name, value in derived(row).items() if value is not None}


_FIRST_RANKS_SHARE = 1.005
"""What the first rank sends of the mean of all; entropy-coded shards of a real entry had this."""


def honest(folder: Path, race: Race = RACE) -> Path:
    """An entry that holds."""
    now = datetime(2026, 11, 26, 3, tzinfo=UTC)
    entries.begin(folder, race, None)
    for number, (arm, seed) in enumerate(race.order()):
        row = row_of(arm, seed, number, now, race)
        now += timedelta(seconds=row["wall_time_s"] + 5)
        row["time_utc"] = now.isoformat(timespec="seconds")
        results.append(folder / ROWS, row)
        write_curve(folder, row)
        (folder / LOGS / f"{row['run_name']}.txt").write_text("link: 200mbit asked, 190.6 Mbit/s measured\n")
    (folder / f"{ROWS}.lock").unlink(missing_ok=True)
    seal(folder, race)
    return folder


def write_curve(folder: Path, row: Row) -> None:
    """The curve that the run of a row would have left."""
    steps, every = row["steps"], row["config"]["log_interval"]
    lines = []
    for step in sorted({*range(every, steps + 1, every), steps}):
        share = step / steps
        sent = round(share * row["bytes_compressed_total"] * _FIRST_RANKS_SHARE)
        lines.append(
            {"step": step, "train_seconds": share * row["train_time_s"], "train_loss": 5.0, "sent_bytes": sent}
        )
    lines.append({**lines[-1], "val_loss": row["val_loss"], "val_ppl": row["val_ppl"]})
    del lines[-1]["train_loss"]
    text = "\n".join(json.dumps(line) for line in lines)
    (folder / CURVES / f"{row['run_name']}.jsonl").write_text(text + "\n")


def seal(folder: Path, race: Race = RACE) -> None:
    """Write statistics and sums that fit the rows, as a cheat would do it, who has read the command."""
    rows = results.load(folder / ROWS)
    entry = Entry(folder, {}, race, rows, [], {}, None)
    try:
        said = score(race.task, {arm: entry.rows_of(arm) for arm in (ENTRY, NONE, BF16)}).plain()
    except ValueError:
        said = {}
    entries.finish(folder, race, {"by": "a test", "label": "int4 hadamard + delta", "linked": True}, said)


def changed(folder: Path, change: Callable[[int, Row], Row | None], curves: bool = False) -> None:
    """Rewrite the rows, each by ``change`` (number, row), which leaves one out by None; with their ``curves``."""
    rows = [change(number, json.loads(line)) for number, line in enumerate((folder / ROWS).read_text().splitlines())]
    kept = [row for row in rows if row is not None]
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in kept))
    for row in kept if curves else ():
        write_curve(folder, row)
    seal(folder)


def of_entry(row: Row) -> bool:
    """Is it a run of the entry, and of no baseline?"""
    return bool(row["compress_method"] == METHODS[ENTRY][0])


def with_config(row: Row, **settings: Any) -> Row:
    """The row with other settings, and the hash that goes with them."""
    row = {**row, "config": {**row["config"], **settings}}
    return {**row, "config_hash": _digest(row)}


def on_other_track(track: str) -> Race:
    """The same entry on another track."""
    return replace(RACE, track=TRACKS[track])
