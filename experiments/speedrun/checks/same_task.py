"""Did every run train the task's model on the task's text, on its ranks, behind its link, with the entry's settings?"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.speedrun.entry import Entry, Row
from experiments.speedrun.task import BF16, ENTRY, FEWEST_RUNS, MOST_RUNS, NONE
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.fields import digest_of

_LINK_MEASURED = (0.7, 1.02)
"""What a TCP stream may have got of the rate, before each run: headers take 4 %, and 1 Gbit/s needs a fast core."""


def complaints(entry: Entry) -> Iterator[str]:
    """Rows of other settings, models, texts, ranks, links or seeds than the task and the entry name."""
    yield from _counts(entry)
    for row in entry.rows:
        name = row["run_name"]
        for complaint in (*_settings(entry, row), *_facts(entry, row), *_place(entry, row)):
            yield f"{name}: {complaint}"


def _counts(entry: Entry) -> Iterator[str]:
    race = entry.race
    if not race.task.is_rehearsal and not FEWEST_RUNS <= race.runs <= MOST_RUNS:
        yield f"{race.runs} runs; an entry has {FEWEST_RUNS} to {MOST_RUNS}"
    for arm in (ENTRY, NONE, BF16):
        seeds, wanted = [row["seed"] for row in entry.rows_of(arm)], race.seeds(arm)
        if sorted(seeds) != sorted(wanted):
            yield f"{arm}: runs with the seeds {_listed(seeds)}; these settings have the seeds {_listed(wanted)}"


def _settings(entry: Entry, row: Row) -> Iterator[str]:
    config = row["config"]
    for setting, value in entry.task.fixed.items():
        actual = config.get(setting, TrainConfig.specs()[setting].default)
        if actual != value:
            yield f"{setting} is {actual!r}; the task fixes it to {value!r}"
    if entry.arm_of(row) is None:
        others = ", ".join(f"{k} {a!r}, not {b!r}" for k, (a, b) in entry.missing_from(row).items())
        yield f"is of no arm: it differs from the entry's settings in {others}"
    if config.get("seed") != row["seed"]:
        yield f"its seed is {row['seed']}, that of its settings {config.get('seed')!r}"
    if row["config_hash"] != _digest(row):
        yield "config_hash is not that of its settings"


def _digest(row: Row) -> str:
    """The digest of a row's settings, as `Config.digest` makes it, which need not know their methods for it."""
    specs, config = TrainConfig.specs().values(), row["config"]
    values = {s.name: config.get(s.name, s.default) for s in specs if s.affects_training}
    return digest_of({s.name: values[s.name] for s in specs if s.affects_training and values[s.name] != s.default})


def _facts(entry: Entry, row: Row) -> Iterator[str]:
    for field, value in entry.task.facts.items():
        if row.get(field) != value:
            yield f"{field} is {row.get(field)!r}; the task's is {value!r}"
    if row["status"] != "ok":
        yield f"ended as {row['status']}: {row.get('error')}"
        return
    if row.get("resumed_at_steps"):
        yield "went on from a checkpoint; a run of an entry has one start"
    settings = entry.race.settings(entry.arm_of(row) or ENTRY)
    if row["steps"] != settings["max_steps"]:
        yield f"{row['steps']} steps; its settings have {settings['max_steps']}"
    tokens = settings["batch_size"] * settings["gradient_accumulation_steps"] * settings["max_length"]
    if row["tokens_seen"] != tokens * entry.race.ranks * row["steps"]:
        yield f"{row['tokens_seen']} tokens in {row['steps']} steps; its settings and ranks take others"


def _place(entry: Entry, row: Row) -> Iterator[str]:
    race = entry.race
    if row["world_size"] != race.ranks or row.get("virtual_ranks"):
        alone = " in one process" if row.get("virtual_ranks") else ""
        yield f"{row['world_size']} ranks{alone}; the entry says {race.ranks}"
    if not race.task.is_rehearsal or entry.header.get("linked"):
        if row.get("link_rate_asked") != race.track.bits_per_s or row.get("link_delay_ms"):
            yield f"its link had {row.get('link_rate_asked')} bit/s, the track has {race.track.bits_per_s:g}"
        else:
            share = (row.get("link_rate_measured") or 0) / race.track.bits_per_s
            if not _LINK_MEASURED[0] <= share <= _LINK_MEASURED[1]:
                yield f"its link carried {share:.2f} of the rate before the run, which is no link of this track"
    if row.get("injected_fault"):
        yield "a fault was injected"


def _listed(seeds: list[int]) -> str:
    return ", ".join(map(str, sorted(seeds))) or "of none"
