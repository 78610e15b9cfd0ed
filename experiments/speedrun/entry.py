"""An entry as a folder: everything that a stranger needs to check it, or to run it again.

entry.json       which task, track and ranks, who and what, the machine, and the sha256 of every other file
settings.yaml    the settings other than the task's
plugin.py        the file that registers a method of its own, where there is one (docs/library/plugins.md)
rows.jsonl       the results rows of all runs, the baselines' among them, in the order of running
curves/, logs/   each run's loss curve, and what its ranks and its link said
statistics.json  what follows from the rows (`score`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.speedrun.race import Race
from experiments.speedrun.task import ENTRY, RANKS, TASK, TRACKS, Task, digest_of_settings, rehearsed
from fsdp_lab.files.atomic import file_sha256, write_bytes, write_json
from fsdp_lab.results.store import scan
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.strict import dump_yaml, load_json, read_yaml

Row = Mapping[str, Any]
HEADER, SETTINGS, PLUGIN, ROWS, STATISTICS = "entry.json", "settings.yaml", "plugin.py", "rows.jsonl", "statistics.json"
CURVES, LOGS = "curves", "logs"
_KINDS: dict[str, type] = {"task": str, "track": str, "ranks": int, "runs": int, "first": int, "rehearsal": bool}


@dataclass(frozen=True)
class Entry:
    """An entry that was read. ``header``: entry.json. ``statistics``: what the folder says that follows from the rows.
    ``bad_rows``: why lines of rows.jsonl are no rows."""

    folder: Path
    header: Mapping[str, Any]
    race: Race
    rows: Sequence[Row]
    bad_rows: Sequence[str]
    curves: Mapping[str, Sequence[Row]]
    statistics: Any

    @property
    def task(self) -> Task:
        """The task that the entry's runs were made for."""
        return self.race.task

    def arm_of(self, row: Row) -> str | None:
        """Which arm a row is of, by its settings; None: of none of the entry's."""
        return self.race.digests().get(digest_of_settings(row["config"]))

    def rows_of(self, arm: str) -> list[Row]:
        """The rows of one arm, in order."""
        return [row for row in self.rows if self.arm_of(row) == arm]

    def missing_from(self, row: Row) -> dict[str, tuple[Any, Any]]:
        """In what a row of no arm differs from the entry's settings: (its value, the entry's) by setting."""
        wanted = self.race.settings(ENTRY)
        return {
            name: (row["config"].get(name, spec.default), wanted[name])
            for name, spec in TrainConfig.specs().items()
            if spec.affects_training and name != "seed" and row["config"].get(name, spec.default) != wanted[name]
        }


def read(folder: Path, task: Task = TASK) -> Entry:
    """The entry in ``folder``. ValueError where it is none, is of another task, or cannot be read."""
    header = _json(folder / HEADER)
    for key, kind in _KINDS.items():
        if not isinstance(header, dict) or type(header.get(key)) is not kind:
            raise ValueError(f"{folder / HEADER}: {key}: wants {kind.__name__}; is this the folder of an entry?")
    if header["task"] != task.name:
        raise ValueError(f"{folder}: is an entry to the task {header['task']!r}; today's is {task.name!r}")
    if header["track"] not in TRACKS or header["ranks"] not in RANKS:
        raise ValueError(f"{folder / HEADER}: no such track, or so many ranks: {header['track']!r}, {header['ranks']}")
    race = Race(
        rehearsed(task) if header["rehearsal"] else task,
        TRACKS[header["track"]],
        header["ranks"],
        header["runs"],
        own_settings(folder / SETTINGS),
        plugin_sha(folder),
        header["first"],
    )
    race.digests()  # refuses a baseline
    rows, bad = [], []
    for number, row, complaints in scan(folder / ROWS):
        if row is None:
            bad.append(f"line {number}: {'; '.join(complaints)}")
        else:
            rows.append(row)
    curves = {path.stem: _lines(path) for path in sorted((folder / CURVES).glob("*.jsonl"))}
    statistics = _json(folder / STATISTICS) if (folder / STATISTICS).exists() else None
    return Entry(folder, header, race, rows, bad, curves, statistics)


def own_settings(path: Path) -> dict[str, Any]:
    """The settings in a YAML file, which must be there. ValueError for others than the trainer's, and for a seed."""
    loaded = read_yaml(path)
    if not isinstance(loaded, dict):
        raise ValueError(f"{path}: wants settings of the trainer, such as max_steps: 150")
    specs = TrainConfig.specs()
    if strange := sorted(str(name) for name in loaded if name not in specs or name == "seed"):
        raise ValueError(f"{path}: {', '.join(strange)}: no setting of an entry")
    return loaded


def plugin_sha(folder: Path) -> str | None:
    """The sha256 of the entry's plugin, if it has one."""
    return file_sha256(folder / PLUGIN) if (folder / PLUGIN).exists() else None


def begin(folder: Path, race: Race, plugin: bytes | None) -> None:
    """Write what is known before the first run."""
    for name in (CURVES, LOGS):
        (folder / name).mkdir(parents=True)
    write_bytes(folder / SETTINGS, dump_yaml(dict(race.own)).encode())
    if plugin is not None:
        write_bytes(folder / PLUGIN, plugin)


def finish(folder: Path, race: Race, further: Mapping[str, Any], statistics: Mapping[str, Any]) -> None:
    """Write the statistics, then entry.json with the sha256 of all files. ``further``: what else it is to say."""
    write_json(folder / STATISTICS, statistics)
    header = {
        "task": race.task.name,
        "target": race.task.target,
        "track": race.track.name,
        "ranks": race.ranks,
        "runs": race.runs,
        "first": race.first,
        "rehearsal": race.task.is_rehearsal,
        **further,
        "files": hashes(folder),
    }
    write_json(folder / HEADER, header)


def hashes(folder: Path) -> dict[str, str]:
    """The sha256 of every file of an entry but entry.json, by its path in the folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != HEADER]
    return {str(path.relative_to(folder)): file_sha256(path) for path in files}


def with_rows(entry: Entry, rows: Sequence[Row]) -> Entry:
    """The same entry with other rows, as one reads it before its statistics are written."""
    return replace(entry, rows=rows)


def _json(path: Path) -> Any:
    try:
        return load_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _lines(path: Path) -> list[Row]:
    try:
        lines = [load_json(line) for line in path.read_bytes().splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not all(isinstance(line, dict) for line in lines):
        raise ValueError(f"{path}: wants a JSON object a line")
    return lines
