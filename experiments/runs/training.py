"""Starting a training run from a script, as `run_safe_training.sh` starts one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRAINER = ("fsdp_lab.train",)


def torchrun_command(module: str, flags: Sequence[str], ranks: int) -> list[str]:
    """The command line that starts a module on ``ranks`` processes of this machine."""
    command = [sys.executable, "-m", "fsdp_lab.launch", "--standalone", "--local-addr=127.0.0.1"]
    return [*command, f"--nproc-per-node={ranks}", "-m", "--", module, *flags]


def torchrun(module: str, flags: Sequence[str], ranks: int, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a module on ``ranks`` processes of this machine; ``how`` are further arguments of `subprocess.run`."""
    return subprocess.run(torchrun_command(module, flags, ranks), text=True, check=False, **how)


def train(flags: Sequence[str], ranks: int, row: Path | None = None, program: Sequence[str] = TRAINER) -> int:
    """Train, leave nothing but a row in ``row`` and its loss curve in ``curves/`` beside it, and return the exit code.

    It prints to standard error only. ``program`` is the module that trains, and arguments that come before the
    trainer's own."""
    with tempfile.TemporaryDirectory() as folder:
        where = ["--output_dir", folder, "--results_path", str(row or Path(folder) / "results.jsonl")]
        if row is not None:  # written there line by line: it outlives a crash, and the folder above
            where += ["--curves_dir", str(row.parent / "curves")]
        module, *first = program
        return torchrun(
            module, [*first, *where, "--no_save_model", *flags], ranks, stdout=subprocess.DEVNULL
        ).returncode
