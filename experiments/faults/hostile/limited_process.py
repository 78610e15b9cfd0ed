"""A command of ours in a process of its own that may take so much address space and so much time, and no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
_POLL_S = 0.05


def trained(out: Path, *flags: str) -> list[str]:
    """The command line of a training of a few steps that writes nothing but below ``out``."""
    settings = {
        "output_dir": out,
        "results_path": out / "results.jsonl",
        "cache_dir": out / "cache",
        "max_length": 32,
        "batch_size": 2,
        "max_steps": 4,
        "val_fraction": 0.05,
        "tensorboard": "false",
    }
    return ["fsdp_lab.train", *(word for name, value in settings.items() for word in (f"--{name}", str(value))), *flags]


class Ended(NamedTuple):
    """How the command ended.

    ``code`` is negative for a signal, None when time was over; ``peak_mb`` is the process's largest resident memory."""

    code: int | None
    output: str
    peak_mb: int


def run_limited(words: Sequence[str], memory_mb: int, seconds: float) -> Ended:
    """Run ``python -m WORDS`` without input; stdout and stderr come as one text."""
    limited = ["sh", "-c", 'ulimit -v "$0" && exec "$@"', str(memory_mb << 10), sys.executable, "-m", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            limited,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code, peak_kb = _wait(process, seconds)
        file.seek(0)
        output = file.read(1 << 20).decode(errors="replace")
    return Ended(code, output, peak_kb >> 10)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> tuple[int | None, int]:
    """The exit code and the largest resident memory in KiB. When time is over, process and children are ended."""
    end = time.monotonic() + seconds
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_maxrss
        if time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = -signal.SIGKILL
            return None, usage.ru_maxrss
        time.sleep(_POLL_S)
