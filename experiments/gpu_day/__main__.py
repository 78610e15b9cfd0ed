"""Everything that needs a GPU, in half an hour of one: tests, codecs, operators, overlap, quality, drafts.

    python -m experiments.gpu_day --plan                                  # the stages, their times, what they need
    python -m experiments.gpu_day --minutes 28 --out gpu_day              # all of them; the same command goes on
    python -m experiments.gpu_day --minutes 9 --out gpu_day --only tests codecs
    python -m experiments.gpu_day --rehearse --out rehearsal              # all of it on a CPU, in small sizes

Every stage runs in processes of its own, is stopped when its time is up, and leaves a zip of at most 16 MB in OUT; a
failure stops no other stage. OUT/gpu_day.json says what became of each, OUT/gpu_day.md shows it. A stage that ended
well is not run again (``--again STAGE`` does); one that was stopped or failed is, after those that were not tried yet.
Exit code 0 when all that was asked for ended well, 1 when something did not, 2 for a mistake in the flags.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.gpu_day.archive import complaints, pack
from experiments.gpu_day.index import Index, page_of
from experiments.gpu_day.running import GRACE_S, Outcome, run, tail
from experiments.gpu_day.table import Stage, names, stages
from fsdp_lab.files.atomic import make_folder
from fsdp_lab.settings.flag_values import a_folder, new_folder, real
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

_RESERVE_S = 10  # for packing and writing after a stage


def main(argv: Sequence[str]) -> int:
    """Show the plan, or run what is left of it; returns the exit code."""
    options = _parser().parse_args(argv)
    with user_errors("gpu_day"):
        work = options.work.absolute() / ("rehearsal" if options.rehearse else "gpu")
        target = None if options.target_dir is None else options.target_dir.absolute()
        day = stages(work, options.rehearse, target)
        if options.plan:
            print(plan(day, options.minutes))
            return 0
        index = _opened(options, day)
    for stage in day:
        if stage.name in options.again:
            shutil.rmtree(work / stage.name, ignore_errors=True)
            index.forget(stage)
    wanted = options.only or names()
    index.write()
    carry_out(index, wanted, work, options)
    index.write()
    states = {stage.name: index.entries[stage.name]["state"] for stage in day if stage.name in wanted}
    print(f"\n{', '.join(f'{name}: {state}' for name, state in states.items())}\n{options.out / 'gpu_day.md'}")
    return 0 if set(states.values()) == {"ok"} else 1


def carry_out(index: Index, wanted: Sequence[str], work: Path, options: argparse.Namespace) -> None:
    """Run the ``wanted`` stages that did not end well, as far as the minutes go."""
    ends = time.monotonic() + 60 * options.minutes
    for stage in index.in_turn(wanted):
        left = ends - time.monotonic() - _RESERVE_S - GRACE_S
        if left < min(stage.least_s, stage.limit_s):
            index.note(stage, why=f"not begun: {max(left, 0):.0f} seconds were left, it needs {stage.least_s}")
            _say(f"{stage.name}: {index.entries[stage.name]['why']}")
            continue
        _say(f"{stage.name}: {stage.about} ({stage.estimate_s} s expected)")
        _one(index, stage, work / stage.name, min(left, stage.limit_s), options)


def _one(index: Index, stage: Stage, folder: Path, seconds: float, options: argparse.Namespace) -> None:
    begun, out = time.monotonic(), options.out
    tries = index.entries[stage.name]["tries"] + 1
    outcome = Outcome("stopped", 0.0, "this program was stopped")
    commands = [" ".join(command[1:]) for command in stage.commands]
    try:
        outcome = run(stage, folder, seconds, options.rehearse)
    except OSError as error:
        outcome = Outcome("failed", time.monotonic() - begun, f"could not be started: {error}")
    finally:  # also where a signal stops us
        if outcome.state == "ok" and (said := complaints(folder, stage.results)):
            outcome = Outcome("failed", outcome.seconds, "; ".join(said))
        left_out = pack(folder, out / stage.archive) if folder.is_dir() else []
        index.note(
            stage,
            state=outcome.state,
            tries=tries,
            seconds=round(time.monotonic() - begun, 1),
            why=outcome.why,
            file=stage.archive,
            left_out=left_out,
            commands=commands,
            last_lines=tail(folder),
            page=page_of(stage, folder),
        )
        _say(f"{stage.name}: {outcome.state} after {outcome.seconds:.0f} s{f': {outcome.why}' if outcome.why else ''}")


def plan(day: Sequence[Stage], minutes: float) -> str:
    """The stages with their times and needs, as a text."""
    import torch  # a second, which --help need not wait for

    lines = [f"{'stage':10}{'expected':>9}{'at most':>9}  what"]
    for stage in day:
        lines.append(f"{stage.name:10}{stage.estimate_s:>7} s{stage.limit_s:>7} s  {stage.about}")
        lines.append(f"{'':30}needs: {stage.needs}")
    total = sum(stage.estimate_s for stage in day)
    lines.append(f"{'all':10}{total:>7} s  of {60 * minutes:.0f} s. Estimates for an H100.")
    here = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no CUDA device: only --rehearse"
    lines.append(f"here: {here}")
    return "\n".join(lines)


def _opened(options: argparse.Namespace, day: Sequence[Stage]) -> Index:
    """The index in OUT. ValueError where the flags, the machine or the folder do not allow for it."""
    if options.out is None:
        raise ValueError("out: give the folder for the results, --out FOLDER (or --plan)")
    import torch  # a second, which --help need not wait for

    if not options.rehearse and not torch.cuda.is_available():
        raise ValueError("torch sees no CUDA device; --rehearse runs all stages on the CPU in small sizes")
    make_folder(options.out, "out")
    return Index(options.out, day, options.rehearse)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _parser() -> Parser:
    parser = program("experiments.gpu_day", __doc__)
    parser.add_argument("--minutes", type=real(above=0), default=28.0, help="after these no stage runs any more (28)")
    parser.add_argument("--out", type=new_folder, help="folder for the eight files of results")
    parser.add_argument(
        "--work", type=new_folder, default=Path("fsdp_output/gpu_day"), help="folder for everything else, for going on"
    )
    for flag, text in (("--only", "no other stages"), ("--again", "run these again, from the beginning")):
        parser.add_argument(flag, nargs="+", choices=names(), default=[], metavar="STAGE", help=text)
    parser.add_argument("--target_dir", type=a_folder, help="target of the drafts; else SmolLM2-135M is made")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, in small sizes; the figures mean nothing")
    parser.add_argument("--plan", action="store_true", help="show the stages; nothing runs")
    return parser


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
