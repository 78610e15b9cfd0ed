"""What the ranks' link does: its bandwidth, its latency, and what each kind of collective takes beside its bytes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import comm_compress as cc
from fsdp_lab.parallel.division.shares import counts
from fsdp_lab.parallel.planning.devices import LinearTime, LinkSpeed
from fsdp_lab.parallel.planning.job import FLOAT, Methods
from fsdp_lab.parallel.planning.steps.traffic import Collective

_SMALL, _FIRST = 1 << 10, 1 << 18  # bytes
_LARGE_S = 0.25  # a large message takes about so long
_PINGS, _REPEATS, _CALLS = 30, 3, 3
_LONG_S = 0.1  # a collective takes about so long at most
_ROWS = 64  # of the tensors that collectives are timed with


def measured_link(methods: Methods, activations: int, gradients: int, burst_kb: float = 0.0) -> LinkSpeed:
    """The link of the default group, by what the slowest rank saw.

    Collectives are timed with tensors of a sixteenth of ``activations`` elements, and of as many as ``gradients`` has,
    or fewer where these would take long. All ranks must call it. Each rank sends to the next and receives from the one
    before at the same time. ``burst_kb``: what an emulated link lets pass at once after a silence.
    """
    latency_s = _agreed(lambda: _ring(_SMALL), _PINGS)
    first_s = _agreed(lambda: _ring(_FIRST), 3)
    burst = 1e3 * burst_kb
    large = int(burst + min(64 << 20, max(_FIRST, _FIRST * _LARGE_S / max(first_s - latency_s, 1e-5))))
    bytes_per_s = (large - burst) / max(1e-9, _agreed(lambda: _ring(large), 3) - latency_s)
    link = LinkSpeed(bytes_per_s * 8 / 1e6, latency_s * 1e3, burst_kb)
    large = max(activations, min(gradients, int(_LONG_S * bytes_per_s / FLOAT)))
    costs = {}
    for method in dict.fromkeys(("none", "identity", methods.activations, methods.gradients)):
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            for equal in (True,) if kind == "all_reduce" else (True, False):
                key, line = _cost(kind, equal, method, methods.bits_of(method), (activations // 16, large), link)
                costs[key] = line
    return replace(link, costs=costs)


def _ring(size: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    out, into = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    pending = [dist.irecv(into, (rank - 1) % world), dist.isend(out, (rank + 1) % world)]
    for work in pending:
        if work is not None:
            work.wait()


def _agreed(call: Callable[[], object], repeats: int) -> float:
    """Seconds of ``call``: the median of ``repeats``, each as long as on the slowest rank."""
    call()
    taken = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    slowest = torch.tensor(taken, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(statistics.median(slowest.tolist()))


def _cost(
    kind: str, equal: bool, method: str, bits: float, elements: tuple[int, int], link: LinkSpeed
) -> tuple[str, LinearTime]:
    """The straight line through the times of two sizes of one collective, less the time of their bytes.

    Several calls follow one another, so that what passes at once after a silence does so once.
    """
    world = dist.get_world_size()
    sizes = [world * _ROWS * max(1, n // (world * _ROWS)) for n in elements]
    beside, name = [], ""
    carrier = None if method == "none" else method
    activations = cc.parallel.Activations(carrier, carrier)
    for i, size in enumerate(sizes):
        rows = None if equal else counts(world * _ROWS, [2.0] + [1.0] * (world - 1))
        parts = None if rows is None else tuple(size * r / sum(rows) for r in rows)
        call = _caller(activations, f"timed {i}", kind, size, rows)
        one = Collective(kind, size, method, parts)
        name = one.cost
        sent = _CALLS * max(one.sent(rank, world, bits) for rank in range(world))
        bytes_s = max(0.0, sent - 1e3 * link.burst_kb) / link.bytes_per_s
        took_s = _agreed(lambda call=call: [call() for _ in range(_CALLS)], _REPEATS)  # type: ignore[misc]
        beside.append(max(0.0, took_s - bytes_s) / _CALLS)
    size, slope = FLOAT * sizes[0], max(0.0, beside[1] - beside[0]) / (FLOAT * max(1, sizes[1] - sizes[0]))
    return name, LinearTime(max(0.0, min(beside) - slope * size), slope)


def _caller(
    activations: cc.parallel.Activations, name: str, kind: str, size: int, rows: Sequence[int] | None
) -> Callable[[], object]:
    """A call of the collective on this rank, in ``[rows, features]``."""
    group: Any = dist.group.WORLD
    world, place = dist.get_world_size(), activations.place(f"{name} {kind}", group)
    total = world * _ROWS if rows is None else sum(rows)
    own = total // world if rows is None else rows[dist.get_rank()]
    whole: Tensor = torch.randn(total, size // total)
    part = whole[:own].clone()
    if kind == "all_reduce":
        return lambda: place.all_reduce(whole)
    if kind == "all_gather":
        return lambda: place.all_gather(part, 0, rows)
    return lambda: place.reduce_scatter(whole, 0, rows)
