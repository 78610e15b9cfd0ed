"""Two ranks that train chains of small units by each arm, by the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn

import comm_compress as cc
from experiments.bench.traffic.arms import methods_of

T = TypeVar("T")
RANKS = 2
WARMUP = 2
ROWS = 16  # of a batch
COLUMNS = ("units", "arm", "attach", "step", "a unit", "state", "working")


class Asked(NamedTuple):
    """What is measured: chains of so many ``units`` of one ``width`` by each arm, and how."""

    units: Sequence[int]
    arms: Sequence[str]
    width: int
    steps: int
    threads: int


def chain(units: int, width: int) -> nn.Sequential:
    """Layers of the same weights on every rank, each a unit. Orthogonal: else a thousand products leave no gradient."""
    torch.manual_seed(0)
    layers, mesh = [nn.Linear(width, width, bias=False) for _ in range(units)], init_device_mesh("cpu", (RANKS,))
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
        fully_shard(layer, mesh=mesh)
    model = nn.Sequential(*layers)
    fully_shard(model, mesh=mesh)
    return model


def line(units: int, label: str, asked: Asked) -> str:
    """Train one chain by one arm; its line of the table."""
    model, methods = chain(units, asked.width), methods_of(label)

    def attach() -> cc.Handle | None:
        gradients, parameters = methods
        return cc.attach(model, reduce_scatter=gradients, all_gather=parameters) if gradients or parameters else None

    attached, handle = timed(attach)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        model(torch.randn(ROWS, asked.width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARMUP):
        step()
    ms = statistics.median(timed(step)[0] for _ in range(asked.steps))
    state, working = (handle.state_bytes, handle.workspace_bytes) if handle else (0, 0)
    numbers = (f"{attached:.1f}", f"{ms:.1f}", f"{1e3 * ms / units:.0f}", f"{state / 1e6:.2f}", f"{working / 1e6:.2f}")
    return row(str(units), label, *numbers)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Milliseconds that ``work`` takes on this rank once both are there, and what it returns."""
    dist.barrier()
    begun = time.perf_counter()
    made = work()
    return 1e3 * (time.perf_counter() - begun), made


def row(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def measure(rank: int, folder: str, asked: Asked) -> None:
    """Measure all on one of the ranks; rank 0 prints the table."""
    torch.set_num_threads(asked.threads)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    if rank == 0:
        print(row(*COLUMNS) + "\n" + row("---:", "---", *["---:"] * 5), flush=True)
    for units in asked.units:
        for label in asked.arms:
            found = line(units, label, asked)
            if rank == 0:
                print(found, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def start(folder: str, asked: Asked) -> None:
    """Have two ranks `measure`, and wait for them; they meet in ``folder``."""
    spawn(measure, (folder, asked), nprocs=RANKS)  # type: ignore[no-untyped-call]
