"""What checkpoints cost: training that stands still for a save, and the time to the first step after a resume.

    fsdp-lab bench checkpoint [--methods int8 topk] [--steps 30] [--save_steps 10] [--json FILE]
        [-- FLAG VALUE...]

Three runs a method on two ranks of this machine: without saves, with one every so many steps, and one that is resumed
from the last. Columns:

    step         milliseconds of a step, median, no checkpoint anywhere near
    with saves   the same while checkpoints are written in the background
    exposed      milliseconds that training stood still for a save, mean, waiting for the last one included
    share        exposed, spread over the steps between two saves, as a share of a step
    size         MB of a checkpoint, all ranks
    start        seconds from the program's start to the end of its first step
    resumed      the same of the resumed run: verifying and loading included

A file given with --json is added to. What follows ``--`` goes to every run of fsdp_lab.train.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.runs.measurements import Line, Lines, before_and_after_dashes
from experiments.runs.method_flag import a_method, check_training_flags
from experiments.runs.training import torchrun
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

RANKS = 2


def measure(method: str, steps: int, save_steps: int, flags: Sequence[str]) -> Line:
    """Run the three runs of a method and compare them. ValueError when one fails."""
    last = (steps - 1) // save_steps * save_steps
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        common = ["--comm_compress", method, "--max_steps", str(steps), *flags]
        plain = run("plain", where, common)
        saving = run("saving", where, [*common, "--save_steps", str(save_steps)])
        checkpoint = where / "runs" / "saving" / "checkpoints" / f"step-{last:08d}"
        size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
        resumed = run("resumed", where, [*common, "--resume", str(checkpoint)])
    assert saving["val_loss"] == plain["val_loss"] == resumed["val_loss"], "checkpoints change no number"
    exposed = saving["save_exposed_s"] / saving["saves"] * 1e3
    return {
        "method": method,
        "save_steps": save_steps,
        "saves": saving["saves"],
        "step_ms": plain["step_time_ms_p50"],
        "saving_step_ms": saving["step_time_ms_p50"],
        "exposed_ms": exposed,
        "share": exposed / save_steps / plain["step_time_ms_p50"],
        "size_mb": size / 1e6,
        "start_s": plain["time_to_first_step_s"],
        "resumed_s": resumed["time_to_first_step_s"],
        "cpu": plain["hardware"].get("cpu"),
        "torch": plain["versions"].get("torch"),
    }


def run(name: str, folder: Path, flags: Sequence[str]) -> Line:
    """Run one training and return its row. ValueError when it fails."""
    rows = folder / f"{name}.jsonl"
    ours = ["--run_name", name, "--output_dir", str(folder), "--results_path", str(rows)]
    ours += ["--no_save_model", "--tensorboard", "false", "--grad_error_every", "0"]
    if code := torchrun("fsdp_lab.train", [*ours, *flags], RANKS, stdout=subprocess.DEVNULL).returncode:
        raise ValueError(f"{name}: exit code {code}")
    return dict(json.loads(rows.read_text()))


def table(lines: Iterable[Line]) -> str:
    """The measurements as a table, one line a method."""
    columns = [
        ("step ms", "step_ms", "9.0f"),
        ("with saves", "saving_step_ms", "12.0f"),
        ("exposed ms", "exposed_ms", "12.0f"),
        ("share", "share", "8.1%"),
        ("size MB", "size_mb", "9.1f"),
        ("start s", "start_s", "9.1f"),
        ("resumed s", "resumed_s", "11.1f"),
    ]
    rows = [f"{'method':10s}" + "".join(f"{head:>{form.partition('.')[0]}s}" for head, _, form in columns)]
    rows += [f"{line['method']:10s}" + "".join(f"{line[key]:{form}}" for _, key, form in columns) for line in lines]
    return "\n".join(rows)


def main(argv: Sequence[str]) -> int:
    """Measure and print; the exit code."""
    ours, flags = before_and_after_dashes(argv)
    parser = program("experiments.bench.trainer.checkpoint", __doc__)
    parser.add_argument("--methods", type=a_method, nargs="+", default=["int8", "topk"])
    parser.add_argument("--steps", type=whole(2), default=30)
    parser.add_argument("--save_steps", type=whole(1), default=10)
    parser.add_argument("--json", type=new_file())
    given = parser.parse_args(ours)
    lines = Lines(given.json)
    with user_errors("bench_checkpoint"):
        check_training_flags(flags)
        if not 0 < given.save_steps < given.steps:
            raise ValueError(
                f"--save_steps: got {given.save_steps}, wants 1 to --steps - 1 (a resumed run needs a step)"
            )
        for method in given.methods:
            lines.add(measure(method, given.steps, given.save_steps, flags))
    print(table(lines.all))
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
