"""One rank of `fsdp-lab bench layouts`: every arm's steps, by the clock, by our ledgers and by the interface."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from experiments.bench.traffic.layouts.arms import Arm, made
from experiments.bench.traffic.layouts.asked import Asked, Lines
from fsdp_lab.measure.wire_check import interface_counters
from fsdp_lab.parallel.planning.measuring.models import random_batch


def rank_main(path: Path) -> None:
    """One rank: every arm, its steps interleaved with the others'; rank 0 writes the measurements."""
    job = json.loads(path.read_text())
    dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    asked = [Asked(**{**arm, "shares": tuple(arm["shares"])}) for arm in job["arms"]]
    arms = made(asked, job["model"], random_batch(job["model"], *job["batch"]))
    lines = measured(arms, job["steps"])
    if dist.get_rank() == 0:
        Path(job["out"]).write_text(json.dumps(lines))
    dist.barrier()
    os._exit(0)


def measured(arms: list[Arm], steps: int) -> Lines:
    """The figures of every arm: medians of ``steps`` steps after one that compiles and allocates."""
    for arm in arms:
        arm.step()
    seconds: list[list[float]] = [[] for _ in arms]
    counted, interface = [0] * len(arms), [0] * len(arms)
    for _ in range(steps):
        for i, arm in enumerate(arms):
            dist.barrier()
            counted_before, sent_before, start = arm.counted(), _interface_bytes(), time.perf_counter()
            arm.step()
            dist.barrier()  # a pipeline's ranks end at different times
            seconds[i].append(time.perf_counter() - start)
            counted[i] += arm.counted() - counted_before
            interface[i] += _interface_bytes() - sent_before
    return [
        {
            "layout": arm.asked.layout,
            "method": arm.carried,
            "shares": list(arm.asked.shares),
            "step_s": statistics.median(seconds[i]),
            "steps_s": [round(each, 5) for each in seconds[i]],
            "counted_bytes": counted[i] // steps or None,
            "interface_bytes": interface[i] // steps,
        }
        for i, arm in enumerate(arms)
    ]


def _interface_bytes() -> int:
    return interface_counters(("eth0",)).sent_bytes
