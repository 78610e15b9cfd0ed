"""A race to a validation loss behind a slow link: run an entry, check one, show the records.

The rules: docs/comparing/speedrun.md

    python -m experiments.speedrun --track 200mbit -- --method "int4 hadamard + delta"
    python -m experiments.speedrun --track 200mbit --entry FOLDER      # settings.yaml, and plugin.py where it has one
    python -m experiments.speedrun --track 200mbit --rehearse -- ...   # a few steps: does it run at all?
    python -m experiments.speedrun verify FOLDER [--rerun]             # does an entry hold?
    python -m experiments.speedrun records [FOLDER]                    # all entries, beside none and bf16
    python -m experiments.speedrun calibrate --seeds 8                 # for who makes a task: what none reaches

Words after -- are flags of the trainer. An entry is runs of its own settings (--runs, at least 4) that take turns with
runs of none and bf16, behind an emulated link, which needs root; then a folder (--out) has everything that others need
to check it. plugin.py IS RUN, by a race and by --rerun: it is a program with all rights that you have.

Exit code 0: the target is reached beyond chance, or the entry holds; 1: it is not, or does not; 2: bad input.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.runs.measurements import before_and_after_dashes
from experiments.speedrun import entry as entries
from experiments.speedrun.race import Race
from experiments.speedrun.task import FEWEST_RUNS, MOST_RUNS, RANKS, TASK, TRACKS, Task, rehearsed
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.flag_values import a_folder, new_folder, whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.reading.cli import given_by
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors

_MODULE = "experiments.speedrun"
_REHEARSED_RUNS = 2


def main(argv: Sequence[str]) -> int:
    """Run the command line; the exit code."""
    words = list(argv)
    if words[:1] == ["verify"]:
        return _verify(words[1:])
    if words[:1] == ["records"]:
        return _records(words[1:])
    if words[:1] == ["calibrate"]:
        return _calibrate(words[1:])
    own, flags = before_and_after_dashes(words)
    options = _parser().parse_args(own)
    with user_errors("speedrun"):
        return _race(options, flags, f"fsdp-lab speedrun {shlex.join(words)}")


def _parser() -> Parser:
    usage = (
        f"python -m {_MODULE} --track TRACK [--entry FOLDER] ... [-- TRAINING FLAGS] | verify FOLDER | records | ..."
    )
    parser = program(_MODULE, __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("--track", choices=list(TRACKS), required=True, help="the link")
    parser.add_argument("--ranks", type=int, choices=RANKS, default=2, help="ranks, with a core each (2)")
    parser.add_argument("--entry", type=a_folder, metavar="FOLDER", help="settings.yaml, perhaps plugin.py")
    parser.add_argument(
        "--runs", type=whole(FEWEST_RUNS, MOST_RUNS), default=FEWEST_RUNS, metavar="N", help="of the entry (4)"
    )
    parser.add_argument(
        "--out", type=new_folder, metavar="FOLDER", help="default: speedruns/TRACK-TIME, or a rehearsal"
    )
    parser.add_argument("--by", default="", metavar="NAME", help="whose entry it is, for the table")
    parser.add_argument("--about", default="", metavar="TEXT", help="a sentence on why it is fast, for the reader")
    parser.add_argument("--rehearse", action="store_true", help="a dozen steps; without root also without a link")
    return parser


def _race(options: argparse.Namespace, flags: Sequence[str], command: str) -> int:
    task = rehearsed(TASK) if options.rehearse else TASK
    kind = "rehearsal" if options.rehearse else options.track
    out = options.out or Path("speedruns") / f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    runs = _REHEARSED_RUNS if options.rehearse else options.runs

    def race(plugin: str | None) -> Race:
        given = {} if options.entry is None else entries.own_settings(options.entry / entries.SETTINGS)
        given |= given_by(TrainConfig, flags, "fsdp_lab.train")
        return Race(task, TRACKS[options.track], options.ranks, runs, _own(task, options.ranks, given), plugin)

    return _carried_out(race, out, options.entry, {"by": options.by, "about": options.about, "command": command})


def _carried_out(race_with: Callable[[str | None], Race], out: Path, entry: Path | None, about: dict[str, str]) -> int:
    """Run a race to the folder ``out``. ``race_with``: makes it, of its plugin's sha256, once methods are known.

    ``entry``: the folder that has the plugin, if any. ``about``: what else entry.json is to say."""
    from experiments.speedrun.running import entered, importable

    if out.exists() and any(out.iterdir()):
        raise ValueError(f"--out: {out} is not empty; an entry is one session, with a folder of its own")
    sha = None if entry is None else entries.plugin_sha(entry)
    plugin = None if entry is None or sha is None else (entry / entries.PLUGIN).read_bytes()
    with importable(plugin):
        race = race_with(sha)
        race.digests()  # refuses a baseline
        score = entered(race, out, plugin, about)
    if score is None:
        return 1
    print(f"{'rehearsal ' if race.task.is_rehearsal else 'entry     '} {out}; check it: fsdp-lab speedrun verify {out}")
    return 0 if score.reached else 1


def _calibrate(words: Sequence[str]) -> int:
    from experiments.speedrun import calibrate

    own, flags = before_and_after_dashes(words)
    parser = program(_MODULE, "What none reaches, without a link, and the target that follows from it.")
    parser.prog += " calibrate"
    parser.add_argument("--seeds", type=whole(2, MOST_RUNS), default=8, metavar="N", help="seeds 1 to N (8)")
    parser.add_argument("--ranks", type=int, choices=RANKS, default=2, help="ranks (2)")
    parser.add_argument("--out", type=Path, default=Path("speedruns/calibration.jsonl"), metavar="FILE", help="rows")
    options = parser.parse_args(own)
    with user_errors("speedrun"):
        settings = _settings_of(TASK, options.ranks, given_by(TrainConfig, flags, "fsdp_lab.train"))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        losses = calibrate.losses(TASK, options.ranks, settings, options.out, options.seeds)
    for seed, loss in losses.items():
        print(f"seed {seed}: {loss:.4f}")
    mean, deviation = statistics.fmean(losses.values()), statistics.stdev(losses.values())
    print(f"mean {mean:.4f}, standard deviation {deviation:.4f}; target {calibrate.target_of([*losses.values()]):.2f}")
    return 0


def _own(task: Task, ranks: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, where they are other than the task's. ValueError: one is fixed."""
    rehearsed_away = {"max_steps", "warmup_steps"} if task.is_rehearsal else set()
    return _settings_of(task, ranks, {name: given[name] for name in given if name not in rehearsed_away})


def _settings_of(task: Task, ranks: int, given: Mapping[str, Any]) -> dict[str, Any]:
    fixed = [name for name in given if name == "seed" or (name in task.fixed and given[name] != task.fixed[name])]
    if fixed:
        raise ValueError(f"{', '.join(fixed)}: fixed by the task; what may change: docs/comparing/speedrun.md")
    built = TrainConfig.of(**{**task.given(ranks), **given})
    return task.own(ranks, built.resolved())


def _verify(words: Sequence[str]) -> int:
    parser = program(_MODULE, "Does an entry hold? By its own files; with --rerun by running it again.")
    parser.prog += " verify"
    parser.add_argument("folder", type=a_folder, metavar="FOLDER")
    parser.add_argument("--rerun", action="store_true", help="run it again with other seeds; its plugin.py IS RUN")
    parser.add_argument("--runs", type=whole(2, MOST_RUNS), metavar="N", help="--rerun: runs (default: the entry's)")
    parser.add_argument("--out", type=new_folder, metavar="FOLDER", help="--rerun: default FOLDER-again")
    options = parser.parse_args(words)
    with user_errors("speedrun"):
        from experiments.speedrun import verify

        complaints = verify.from_files(options.folder)
        for check, complaint in complaints:
            print(f"{check}: {printable(complaint)}")
        if options.rerun:
            out = options.out or options.folder.with_name(f"{options.folder.name}-again")
            complaints += [("rerun", line) for line in _again(options.folder, out, options.runs)]
        is_rehearsal = entries.read(options.folder).task.is_rehearsal
    holds = "the rehearsal holds; it is no entry" if is_rehearsal else "the entry holds"
    print(f"{options.folder}: {f'{len(complaints)} complaints' if complaints else holds}")
    return 1 if complaints else 0


def _again(folder: Path, out: Path, runs: int | None) -> list[str]:
    """Run the entry in ``folder`` again, with later seeds, to the folder ``out``; what that says against it."""
    from experiments.speedrun import verify

    entry = entries.read(folder)
    first = entry.race.first + entry.race.runs
    race = replace(entry.race, runs=runs or entry.race.runs, first=first)
    about = {"about": f"a second run of {entry.folder.name}", "command": f"fsdp-lab speedrun verify {folder} --rerun"}
    _carried_out(lambda _: race, out, folder, about)
    if not (out / entries.HEADER).exists():
        return [f"a second run did not end well: {out}"]
    complaints = verify.against_a_second_run(entry, entries.read(out))
    for complaint in complaints:
        print(f"rerun: {complaint}")
    return complaints


def _records(words: Sequence[str]) -> int:
    from experiments.speedrun import records

    parser = program(_MODULE, "All entries below a folder as a table, beside the baselines of their sessions.")
    parser.prog += " records"
    parser.add_argument("folder", type=a_folder, nargs="?", default=records.RECORDS, metavar="FOLDER")
    parser.add_argument("--page", action="store_true", help=f"also write {records.PAGE.name} among the documents")
    options = parser.parse_args(words)
    entries, left_out = records.read_all(options.folder)
    print(records.text(entries))
    for line in left_out:
        print(f"left out: {printable(line)}", file=sys.stderr)
    if options.page:
        records.PAGE.write_text(records.page(entries))
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
