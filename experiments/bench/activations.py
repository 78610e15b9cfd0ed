"""What an all-reduce of activations costs: torch's own against `Place.all_reduce`, on two gloo ranks of this machine.

    python -m experiments.bench.activations [--methods none identity int8 fp8] [--tokens 128 1024] [--features 768]
        [--repeats 50] [--threads 1]

Tensors are ``[1, tokens, features]`` in float32. The calls of all methods take turns, ``torch`` (a clone and
`torch.distributed.all_reduce`) among them, so that whatever else the machine does meets all of them. Columns: median
and least milliseconds of a call on rank 0, the bytes that a rank sent of those it would have sent uncompressed. Ranks
share memory and processor here: over a slow link fewer bytes take less time, which this does not show.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

import comm_compress as cc
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

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


def main(argv: Sequence[str]) -> int:
    """Start two ranks and print their table."""
    parser = program("experiments.bench.activations", __doc__)
    parser.add_argument("--methods", nargs="+", default=["none", "identity", "int8", "fp8"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    with user_errors("bench_activations"), tempfile.TemporaryDirectory() as folder:
        for method in options.methods:
            cc.parallel.Activations(method)  # refused before ranks start
        if min(*options.tokens, options.features, options.repeats, options.threads) < 1:
            raise ValueError("--tokens, --features, --repeats and --threads must be 1 or more")
        arguments = (options.methods, options.tokens, options.features, options.repeats, options.threads)
        spawn(measure, (str(Path(folder)), *arguments), nprocs=RANKS)  # type: ignore[no-untyped-call]
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
