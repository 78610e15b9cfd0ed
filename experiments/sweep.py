"""A whole comparison from one file: every cell that is not finished yet runs, then the next command is named.

    python -m experiments.sweep RECIPE                                  # again after any interruption
    python -m experiments.sweep RECIPE --dry_run                        # the plan and its time, nothing else
    python -m experiments.sweep RECIPE --jobs 4                         # four cells at once, GPUs shared out
    python -m experiments.sweep RECIPE --slurm FOLDER                   # array jobs for a cluster
    python -m experiments.sweep RECIPE --out FILE -- --max_steps 100    # training flags for every cell

RECIPE is a YAML file, or the name of one below experiments/recipes (``methods``, ``user_model``).

Exit code 0 when every cell is finished, 1 when some failed, 2 for a mistake in the recipe or the flags, 130 or 143
after Ctrl-C or SIGTERM. docs/comparing/sweeps.md describes recipes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.sweeps import common_start, slurm
from experiments.sweeps.estimate import Estimator
from experiments.sweeps.obstacles import obstacles
from experiments.sweeps.other_weights import other_weights
from experiments.sweeps.plan import Plan, aim, describe, past_of, reader, sound_rows
from experiments.sweeps.progress import Progress, summary
from experiments.sweeps.recipe.cells import cells_of
from experiments.sweeps.recipe.named import recipe_file
from experiments.sweeps.recipe.recipe import read
from experiments.sweeps.recipe.start import Start
from experiments.sweeps.runner import Runner
from experiments.sweeps.slots import divide, gpus_here, too_large, warning
from fsdp_lab import results
from fsdp_lab.settings.flag_values import a_file, new_folder, whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

REFERENCE = Path(__file__).resolve().parents[1] / "results" / "reference"


def main(argv: Sequence[str]) -> int:
    """Plan the sweep, then show it, write it for Slurm, or run it."""
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:split])
    with user_errors("sweep"):
        plan, out = _plan(options, words[split + 1 :])
        estimator = _estimator(plan, out, options.rows)
        lacking = obstacles(plan.to_run(), plan.recipe.starts, plan.recipe.rates) + other_weights(plan)
        if options.dry_run:
            print(describe(plan, out, estimator, options.jobs))
            print("".join(f"\nnot yet possible here: {line}" for line in lacking), end="\n" if lacking else "")
            return 0
        if options.slurm is not None:
            if missing := [str(start.folder) for start in plan.recipe.starts if not start.is_there]:
                raise ValueError(f"--slurm: first train the common start, {', '.join(missing)}, with --start_only")
            print(f"written; look at its first lines, then: bash {slurm.write(plan, out, options.slurm)}")
            return 0
        if lacking:
            raise ValueError("\n".join(lacking))
        if options.start_only:
            return _start_only(plan.recipe.starts, f"fsdp-lab sweep {shlex.join(words)}")
        return _run(plan, out, estimator, options.jobs, f"fsdp-lab sweep {shlex.join(words)}")


def _start_only(starts: Sequence[Start], command: str) -> int:
    if not starts:
        raise ValueError("--start_only: the recipe has no key start")
    for start in starts:
        try:
            common_start.ensure(start, lambda line: print(line, flush=True))
        except SystemExit as stopped:
            print(f"stopped. Go on with: {command}")
            return int(stopped.code or 0)
        print(f"the common start is in {start.folder}")
    return 0


def _parser() -> Parser:
    usage = "python -m experiments.sweep RECIPE [--out FILE] [--dry_run] [--jobs N] ... [-- TRAINING FLAGS]"
    parser = program("experiments.sweep", __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("recipe", type=recipe_file, help="a YAML file, or the name of a recipe that is here")
    parser.add_argument("--out", type=Path, help="file of results rows (default: results/<the recipe's name>.jsonl)")
    parser.add_argument("--dry_run", action="store_true", help="print the plan; nothing runs")
    parser.add_argument("--jobs", type=whole(1), default=1, metavar="N", help="cells at the same time (default: 1)")
    parser.add_argument("--slurm", type=new_folder, metavar="FOLDER", help="write array jobs there; nothing runs")
    parser.add_argument("--start_only", action="store_true", help="train the recipe's common starts, and no cell")
    parser.add_argument("--retry_failed", action="store_true", help="try cells again that failed twice")
    parser.add_argument(
        "--only", type=whole(1), metavar="N", help="no cell but the Nth of the plan (what --slurm uses)"
    )
    parser.add_argument("--rows", type=a_file, nargs="+", default=[], metavar="FILE", help="rows to estimate times by")
    return parser


def _plan(options: argparse.Namespace, flags: Sequence[str]) -> tuple[Plan, Path]:
    recipe = read(options.recipe, flags)
    cells = cells_of(recipe)
    total = len(cells)
    out: Path = options.out or Path("results") / f"{recipe.name}.jsonl"
    if options.only is not None:
        if not 1 <= options.only <= total:
            raise ValueError(f"--only: got {options.only}, the plan has cells 1 to {total}")
        cells = [cells[options.only - 1]]
    rows = sound_rows(out)
    return Plan(recipe, cells, past_of(rows), rows, total, options.retry_failed), out


def _estimator(plan: Plan, out: Path, named: Sequence[Path]) -> Estimator:
    """The estimator that knows this sweep's own rows; if it has none, those that were named, or the reference rows."""
    own = Estimator(plan.rows, str(out))
    if own.count and own.total(plan.cells)[1] < len(plan.cells):
        return own
    files = named or sorted(REFERENCE.rglob("*.jsonl"))
    where = ", ".join(map(str, named)) or "results/reference"
    return Estimator([row for path in files for row in sound_rows(path)], where)


def _run(plan: Plan, out: Path, estimator: Estimator, jobs: int, command: str) -> int:
    results.ensure_appendable(out)
    cores, gpus = sorted(os.sched_getaffinity(0)), gpus_here()
    slots = divide(jobs, cores, gpus)
    complaint = too_large(plan.to_run(), slots, gpus, plan.starts_to_train())
    if complaint and "SLURM_JOB_ID" not in os.environ:
        raise ValueError(complaint)
    if notice := warning(jobs, cores, gpus):
        print(f"sweep: {notice}", file=sys.stderr)
    progress = Progress(plan, estimator, jobs, sys.stderr)
    states = [plan.state(cell) for cell in plan.cells]
    picked = len(states) < plan.total
    cells = f"cell {plan.cells[0].number} of {plan.total}" if picked else f"{plan.total} cell{'s' * (plan.total > 1)}"
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("finished", "failed", "to run"))
    progress.say(f"{plan.recipe.name}: {cells}: {counts}; rows in {out}")
    if not picked:
        progress.say(aim(plan, estimator, jobs))
    try:
        to_train = plan.starts_to_train()
        for start in to_train:
            common_start.ensure(start, progress.say)
        if to_train and (found := other_weights(plan)):
            raise ValueError("\n".join(found))
        Runner(plan, out, slots, progress).run()
    except SystemExit as stopped:
        progress.say(f"stopped; what is finished is in {out}. Go on with: {command}")
        return int(stopped.code or 0)
    finally:
        progress.close()
    return _report(plan, out)


def _report(plan: Plan, out: Path) -> int:
    """Print the summary and what to do next; the exit code."""
    rows = sound_rows(out)
    plan = dataclasses.replace(plan, past=past_of(rows), rows=rows, retry_failed=False)
    print(summary(plan))
    failed = sum(plan.state(cell) != "finished" for cell in plan.cells)
    if failed:
        print(f"\n{failed} of {len(plan.cells)} cells failed; their rows say why, --retry_failed tries them again")
    print(f"\nnext: fsdp-lab {reader(plan.recipe).format(rows=out, chosen=out.with_suffix('.json'))}")
    return 1 if failed else 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
