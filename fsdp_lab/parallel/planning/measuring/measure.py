"""Measures the devices of a job for `fsdp-lab plan`: what each rank computes, what memory it has, and their link.

    torchrun --nproc_per_node 2 -m fsdp_lab.parallel.planning.measuring.measure --model gpt2-mini --out devices.json
        [--sequences 4] [--length 128] [--activation int8] [--gradients int8] [--repeats 5]

Started once on every machine of the job, as training would be (`torchrun --nnodes ...`). All ranks compute at the
same time, as they do in training; rank 0 writes the file. CPUs and gloo only: of GPUs write the file by hand.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import comm_compress as cc
from fsdp_lab.measure.memory import peak
from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.models.choice import divided_model
from fsdp_lab.parallel.planning.devices import Device, Devices, LinearTime
from fsdp_lab.parallel.planning.job import Job, Methods
from fsdp_lab.parallel.planning.measuring.link_times import measured_link
from fsdp_lab.parallel.planning.measuring.meeting import with_meetings
from fsdp_lab.parallel.planning.measuring.models import random_batch, whole_model
from fsdp_lab.parallel.planning.measuring.options import options_of
from fsdp_lab.parallel.planning.measuring.stopwatch import Stopwatch, step_times
from fsdp_lab.parallel.planning.steps.work import PARTS, counts_by, operations
from fsdp_lab.settings.flag_values import new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

_LAYERS = 2  # of the model that is timed: a block is timed between two others' collectives
_UPDATED = 1 << 20  # parameters that the optimizer is timed with


def shares_to_time(world: int) -> list[float]:
    """The shares of which a straight line is made: around those that a plan for so many ranks may give."""
    return sorted({1 / (2 * world), 1 / world, 1 - 1 / world, 1 - 1 / (2 * world)})


def line_through(points: Sequence[tuple[float, float]]) -> LinearTime:
    """The least-squares line through (x, seconds), neither its height at 0 nor its slope below 0."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((each - x) ** 2 for each in xs)
    slope = sum((a - x) * (b - y) for a, b in points) / spread if spread else 0.0
    if slope <= 0:
        return LinearTime(max(y, 0.0), 0.0)
    if y < slope * x:
        return LinearTime(0.0, sum(a * b for a, b in points) / sum(a * a for a in xs))
    return LinearTime(y - slope * x, slope)


def measure(job: Job, methods: Methods, repeats: int, burst_kb: float = 0.0) -> Devices:
    """The devices and their link, on every rank of the default group, all of which must call it.

    ``burst_kb``: of an emulated link (`LinkSpeed`).
    """
    memory_mb, base_mb = _memory_mb(dist.get_world_size()), _base_mb()
    rank, world = dist.get_rank(), dist.get_world_size()
    alone: Any = [dist.new_group([other]) for other in range(world)][rank]
    parts: dict[str, LinearTime] = {}
    for layout in LAYOUTS:
        parts |= _times_of_layout(job, layout, alone, repeats)
    parts |= _times_of_whole(job, alone, repeats)
    busy = parts["whole.rest"].at(1.0)
    device = Device(
        name=f"{os.uname().nodename} rank {rank}",
        gflops=operations(job, "whole", "rest") / busy / 1e9,
        memory_mb=memory_mb,
        base_mb=base_mb,
        update_ns=_update_ns(),
        parts=parts,
    )
    by_rank: list[Any] = [None] * world
    dist.all_gather_object(by_rank, device)
    link = measured_link(methods, job.tokens * job.shape.width, job.shape.block, burst_kb)
    alone_s = Devices(by_rank, link, {"model": job.model, "sequences": job.sequences, "length": job.length})
    if job.shape.key_heads < world:  # too few heads for steps of the real layout
        return alone_s
    return with_meetings(alone_s, job, methods, repeats)


def _times_of_layout(job: Job, layout: str, alone: dist.ProcessGroup, repeats: int) -> dict[str, LinearTime]:
    points: dict[str, list[tuple[float, float]]] = {}
    for share in shares_to_time(dist.get_world_size()):
        try:
            counts = counts_by(job, layout, [share, 1 - share])
        except ValueError:  # fewer heads than that: a plan cannot give such a share either
            continue
        model = divided_model(whole_model(job.model, _LAYERS), Stopwatch(layout, share, alone))
        dist.barrier()  # all ranks compute at the same time
        seconds = step_times(model, random_batch(job.model, job.sequences, job.length), repeats)
        for part, unit in PARTS[layout].items():
            x = 1.0 if unit == "whole" else counts[unit][0] / sum(counts[unit])
            points.setdefault(f"{layout}.{part}", []).append((x, seconds[part]))
    return {name: line_through(each) for name, each in points.items()}


def _times_of_whole(job: Job, alone: dist.ProcessGroup, repeats: int) -> dict[str, LinearTime]:
    """An undivided model on all sequences of the batch, on half of them, and on one."""
    points: dict[str, list[tuple[float, float]]] = {}
    model = divided_model(whole_model(job.model, _LAYERS), Stopwatch("tp", 1.0, alone))
    for rows in sorted({1, max(1, job.sequences // 2), job.sequences}):
        dist.barrier()
        seconds = step_times(model, random_batch(job.model, rows, job.length), repeats)
        block = seconds["attention"] + seconds["mlp"] + seconds["rest"]
        for name, value in (("rest", block), ("ends", seconds["ends"])):
            points.setdefault(f"whole.{name}", []).append((rows / job.sequences, value))
    return {name: line_through(each) for name, each in points.items()}


def _update_ns() -> float:
    """Nanoseconds of AdamW for a parameter."""
    weight = torch.nn.Parameter(torch.zeros(_UPDATED))
    optimizer = torch.optim.AdamW([weight], fused=True)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    start = time.perf_counter()
    for _ in range(3):
        optimizer.step()
    return (time.perf_counter() - start) / 3 / _UPDATED * 1e9


def _memory_mb(world: int) -> float:
    """What this rank may use: its part of what this machine has free, and what it has already."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):  # Linux knows what it could free, too
        told = Path("/proc/meminfo").read_text()
        free = next(1024 * int(line.split()[1]) for line in told.splitlines() if line.startswith("MemAvailable:"))
    return free / here / 1e6 + _base_mb()


def _base_mb() -> float:
    return peak(torch.device("cpu")).peak_rss_gb * 1e3


def methods_of(options: argparse.Namespace, job: Job) -> Methods:
    """The methods named, with the bits that they send for an element.

    ValueError for one that is not known, and for one that cannot carry activations of any shares.
    """
    activation, gradients = options.activation, options.gradients
    bits = {}
    if gradients != "none":
        like = torch.randn(job.shape.width, job.shape.block // job.shape.width)
        bits[gradients] = cc.roundtrip(like, gradients).bits_per_element
    if activation != "none":
        cc.parallel.Activations(activation, activation)
        made: Any = cc.make(activation)
        elements = job.tokens * job.shape.width
        size = made.wire_bytes(elements) if hasattr(made, "wire_bytes") else None
        if size is None:
            raise ValueError(f"activation: messages of {activation} have no fixed size, and unequal shares need that")
        bits[activation] = 8 * size / elements
    return Methods(activation, gradients, bits)


def main(argv: Sequence[str]) -> int:
    """Be one of the ranks that measure themselves and their link; returns the exit code."""
    parser = program("fsdp_lab.parallel.planning.measuring.measure", __doc__)
    options_of(parser)
    parser.add_argument("--out", type=new_file(), required=True)
    parser.add_argument("--burst_kb", type=float, default=0.0, help=argparse.SUPPRESS)  # of an emulated link
    options = parser.parse_args(argv)
    with user_errors("measure"):
        if "RANK" not in os.environ:
            raise ValueError("it measures ranks, and there is none: start it with torchrun, as shown in --help")
        job = Job.of(options.model, options.sequences, options.length)
        methods = methods_of(options, job)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    devices = measure(job, methods, options.repeats, options.burst_kb)
    if dist.get_rank() == 0:
        devices.write(options.out)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a plain exit


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
