"""Trains the common start of a sweep's cells (`recipe.start`), once for all sweeps that name the same one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from experiments.runs.processes import dying_with_this_process, end, leaving_tidily
from experiments.runs.training import torchrun_command
from experiments.sweeps.locks import Lock, take
from experiments.sweeps.recipe.start import Start
from fsdp_lab.settings.config import TrainConfig

_POLL_S = 0.5
_STOP_S = 60  # torchrun gives its ranks 30
_NAME = "start"


def ensure(start: Start, say: Callable[[str], None]) -> None:
    """Return when the start's folder is there: trained here, on from its checkpoint if it was stopped, or elsewhere.

    ``say`` takes lines for who waits. Raises ValueError with the end of its output when the training fails; told to
    stop, it stops the training, which leaves a checkpoint, and raises SystemExit(128 + n).
    """
    if start.is_there:
        return
    training = start.folder.with_name(f"{start.folder.name}.training")
    waits = False
    while (lock := take(training / "lock")) is None:
        if not waits:
            say(f"another sweep trains the common start {start.folder}; waiting for it")
        waits = True
        time.sleep(_POLL_S)
    try:
        if not start.is_there:
            say(f"training the common start {start.folder}: {start.config.optim.max_steps} steps; {training}/log.txt")
            _train(start, training, lock)
            os.rename(training / "runs" / _NAME / "final_model", start.folder)
    finally:
        lock.release()
    shutil.rmtree(training, ignore_errors=True)


def _train(start: Start, training: Path, lock: Lock) -> None:
    places = {"output_dir": str(training), "results_path": str(training / "row.jsonl"), "run_name": _NAME}
    config = TrainConfig.of(**start.config.resolved() | places | {"save_model": True, "resume": "auto"})
    assert config.digest() == start.config.digest(), "where a run writes does not affect the training"
    settings, log = training / "config.yaml", training / "log.txt"
    settings.write_text(config.to_yaml())
    with leaving_tidily(), log.open("ab") as file:
        process = subprocess.Popen(
            torchrun_command("fsdp_lab.train", ["--config", str(settings)], start.processes),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dying_with_this_process(signal.SIGTERM),  # it leaves a checkpoint
            pass_fds=(lock.fd,),  # held for as long as the training lives
        )
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
        except BaseException:
            end([process], _STOP_S)
            raise
    if process.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-5:]
        print("\n".join(last), file=sys.stderr)
        raise ValueError(f"start: its training ended with exit code {process.returncode}; all it said is in {log}")
