"""What a profile costs: the same steps of two runs, one under torch.profiler, one not.

    fsdp-lab bench profiler [--methods none int8] [--steps 20] [--repeats 1] [--json FILE]
        [-- FLAG VALUE...]

Two ranks on this machine. All steps after the warm-up are compared, the same ones: those at the start of a run are
slower than later ones, with a profiler or without. Columns, medians over the runs:

    step         milliseconds of a step without a profiler, the run's median
    profiled     milliseconds of a step with it (every rank, shapes recorded), the median of its traces
    overhead     their ratio, less one
    read         seconds that a run with --profile takes to read one rank's trace, a profiled step
    trace        MB a rank and profiled step

A file given with --json is added to. What follows ``--`` goes to every run of fsdp_lab.train.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.runs.measurements import Line, Lines, before_and_after_dashes
from experiments.runs.method_flag import a_method, check_training_flags
from experiments.runs.training import torchrun
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors
from fsdp_lab.trace import rank_profile, read

RANKS = 2
LEAST_STEPS = 20  # the trainer warms up for a quarter of the steps, but at most 5


def measure(method: str, steps: int, flags: Sequence[str]) -> Line:
    """A run without and a run with a profiler, compared. ValueError when one fails."""
    with tempfile.TemporaryDirectory() as folder:
        row, profiled_row = (run(method, steps, profile, Path(folder), flags) for profile in (False, True))
        traces = sorted((Path(folder) / "logs" / "profiled" / "profiler").iterdir())
        started = time.perf_counter()
        profiles = [rank_profile(read(path)) for path in traces]
        seconds = (time.perf_counter() - started) / len(traces)
        size = statistics.fmean(path.stat().st_size for path in traces)
    assert profiled_row["val_loss"] == row["val_loss"], "a profiler changes no number"
    profiled_steps = len(profiles[0].steps)
    profiled = statistics.median(step.whole.total for rank in profiles for step in rank.steps)
    return {
        "method": method,
        "steps_compared": profiled_steps,
        "step_ms": row["step_time_ms_p50"],
        "profiled_step_ms": profiled,
        "overhead": profiled / row["step_time_ms_p50"] - 1,
        "read_seconds_per_step": seconds / profiled_steps,
        "trace_mb_per_step": size / profiled_steps / 1e6,
        "cpu": row["hardware"].get("cpu"),
        "torch": row["versions"].get("torch"),
    }


def run(method: str, steps: int, profile: bool, folder: Path, flags: Sequence[str]) -> Line:
    """Run one training and return its row. ValueError when it fails."""
    name = "profiled" if profile else "plain"
    rows = folder / f"{name}.jsonl"
    ours = ["--comm_compress", method, "--param_compress", method, "--max_steps", str(steps), "--run_name", name]
    ours += ["--log_interval", str(steps), "--no_save_model", "--tensorboard", "false"]
    ours += ["--output_dir", str(folder), "--results_path", str(rows)]
    ours += ["--profile", "--profile_steps", str(steps)] if profile else []
    if code := torchrun("fsdp_lab.train", [*ours, *flags], RANKS, stdout=subprocess.DEVNULL).returncode:
        raise ValueError(f"{method}: exit code {code}")
    return dict(json.loads(rows.read_text()))


def table(lines: Iterable[Line]) -> str:
    """The median of each method's runs as a table."""
    heads = [("runs", 6), ("step ms", 10), ("profiled ms", 13), ("overhead", 10), ("read s", 8), ("trace MB", 10)]
    rows = [f"{'method':10s}" + "".join(f"{name:>{width}s}" for name, width in heads)]
    by_method: dict[str, list[Line]] = {}
    for line in lines:
        by_method.setdefault(line["method"], []).append(line)
    for method, runs in by_method.items():
        step, profiled, overhead, seconds, size = (
            statistics.median(run[column] for run in runs)
            for column in ("step_ms", "profiled_step_ms", "overhead", "read_seconds_per_step", "trace_mb_per_step")
        )
        cells = f"{len(runs):6d}{step:10.0f}{profiled:13.0f}{overhead:10.1%}{seconds:8.2f}{size:10.2f}"
        rows.append(f"{method:10s}{cells}")
    return "\n".join(rows)


def main(argv: Sequence[str]) -> int:
    """Run the pairs, print the table, and add the measurements to the file."""
    own, passed_on = before_and_after_dashes(argv)
    parser = program("experiments.bench.trainer.profiler", __doc__)
    parser.add_argument("--methods", type=a_method, nargs="+", default=["none", "int8"])
    parser.add_argument("--steps", type=whole(1), default=LEAST_STEPS)
    parser.add_argument("--repeats", type=whole(1), default=1)
    parser.add_argument("--json", type=new_file())
    options = parser.parse_args(own)
    lines = Lines(options.json)
    with user_errors("bench_profiler"):
        check_training_flags(passed_on)
        if options.steps < LEAST_STEPS:
            raise ValueError(f"--steps: got {options.steps}, wants a whole number, at least {LEAST_STEPS}")
        for _ in range(options.repeats):
            for method in options.methods:
                lines.add(measure(method, options.steps, passed_on))
    print(table(lines.all))
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
