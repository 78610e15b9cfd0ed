"""Two ranks that reduce activations by each method in turn, by the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

import comm_compress as cc

RANKS = 2
WARMUP = 5


def calls(methods: Sequence[str], group: dist.ProcessGroup) -> dict[str, tuple[Callable[[Tensor], Tensor], cc.Ledger]]:
    """Return how each method reduces, and where it counts; ``torch`` first."""

    def own(x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    by_method: dict[str, tuple[Callable[[Tensor], Tensor], cc.Ledger]] = {"torch": (own, cc.Ledger())}
    for method in methods:
        activations = cc.parallel.Activations(method, method)
        by_method[method] = (activations.place("bench", group).all_reduce, activations.ledger)
    return by_method


def measure(rank: int, folder: str, methods: list[str], tokens: list[int], features: int, repeats: int, n: int) -> None:
    """Time every method's calls in turn on one of the ranks; rank 0 prints the table."""
    torch.set_num_threads(n)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    group = dist.group.WORLD
    assert group is not None
    for count in tokens:
        x = torch.randn(1, count, features)
        reduce, times = calls(methods, group), dict[str, list[float]]()
        for repeat in range(WARMUP + repeats):
            for name, (call, _) in reduce.items():
                dist.barrier()
                start = time.perf_counter()
                call(x)
                if repeat >= WARMUP:
                    times.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
        if rank == 0:
            print(f"{count} tokens of {features}, {x.nbytes} bytes")
            for name, seen in times.items():
                totals = reduce[name][1].totals()
                sent = f"{totals.sent_bytes / totals.raw_bytes:.1%}" if totals.raw_bytes else "-"
                print(f"  {name:20s} {statistics.median(seen):8.3f} ms  least {min(seen):8.3f} ms  sent {sent:>7s}")
    dist.barrier()
    dist.destroy_process_group()


def start(folder: str, methods: list[str], tokens: list[int], features: int, repeats: int, threads: int) -> None:
    """Have two ranks `measure`, and wait for them; they meet in ``folder``."""
    arguments = (folder, methods, tokens, features, repeats, threads)
    spawn(measure, arguments, nprocs=RANKS)  # type: ignore[no-untyped-call]
