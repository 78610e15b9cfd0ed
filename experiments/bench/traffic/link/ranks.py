"""One rank: every method's collectives in turn, by the ledger, by the clock and by the interface's counter."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import comm_compress as cc
from comm_compress.core.state import State
from comm_compress.drive._compat import all_gather_single, reduce_scatter_single
from comm_compress.integrations.fsdp.hooks import CompressedAllGather, CompressedReduceScatter
from fsdp_lab.measure.wire_check import interface_counters

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("identity", {}),
    ("bf16", {}),
    ("fp16", {}),
    ("int8", {}),
    ("int8", {"scale": "global"}),
    ("topk", {"ratio": 0.01}),
]


@dataclass(frozen=True)
class _Bench:
    """What one rank measures with: the unit, its shard, and the lines so far."""

    rank: int
    world: int
    whole: Tensor
    shard: Tensor
    repeats: int
    lines: list[dict[str, Any]] = field(default_factory=list)

    def measure(self, method: str, op: str, call: Callable[[], object], ledger: cc.Ledger | None) -> None:
        """Add the line of a collective that is called again and again; without a ledger the shapes say its bytes."""
        call()
        dist.barrier()
        sent_before, interface_before = _sent(ledger), _interface_bytes()
        wire_s, whole_s = [], []
        for _ in range(self.repeats):
            wire_start, start = _wire_s(ledger), time.perf_counter()
            call()
            wire_s.append(_wire_s(ledger) - wire_start)
            whole_s.append(time.perf_counter() - start)
        dist.barrier()
        raw = self.shard.nbytes * (self.world - 1) * self.repeats
        self.lines.append(
            {
                "method": method,
                "op": op,
                "raw_bytes": raw,
                "ledger_bytes": raw if ledger is None else _sent(ledger) - sent_before,
                "interface_bytes": _interface_bytes() - interface_before,
                "wire_s": statistics.median(wire_s),
                "whole_s": statistics.median(whole_s),
            }
        )

    def stock(self) -> None:
        """Measure torch's own collectives on the same rows, as what others are compared with."""
        gathered = torch.empty_like(self.whole)
        self.measure("stock", "reduce_scatter", lambda: reduce_scatter_single(self.shard.clone(), self.whole), None)
        self.measure("stock", "all_gather", lambda: all_gather_single(gathered, self.shard), None)

    def method(self, name: str, config: dict[str, Any]) -> None:
        """Measure a method's reduce-scatter and, where it may carry parameters, its all-gather."""
        compressor, group = cc.make(name, config), dist.group.WORLD
        assert compressor is not None
        label = " ".join([name, *(f"{k}={v}" for k, v in config.items())])
        ledger = cc.Ledger()
        scatter = CompressedReduceScatter(State("unit", self.rank, self.world), compressor, ledger)
        scattered = dist.ReduceOp.SUM
        self.measure(label, "reduce_scatter", lambda: scatter(self.shard.clone(), self.whole, group, scattered), ledger)
        if compressor.traits.for_parameters:
            ledger, gathered = cc.Ledger(), torch.empty_like(self.whole)
            gather = CompressedAllGather(State("unit", self.rank, self.world), compressor, ledger)
            self.measure(label, "all_gather", lambda: gather(gathered, self.shard, group), ledger)


def _interface_bytes() -> int:
    return interface_counters(("eth0",)).sent_bytes


def _sent(ledger: cc.Ledger | None) -> int:
    return ledger.totals().sent_bytes if ledger is not None else 0


def _wire_s(ledger: cc.Ledger | None) -> float:
    """A clock that advances while bytes travel; without a ledger the clock on the wall."""
    return ledger.totals().wire_ms / 1e3 if ledger is not None else time.perf_counter()


def rank_main(elements: int, repeats: int, out: Path) -> None:
    """One rank: every method in turn; rank 0 writes the measurements."""
    dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = torch.randn(elements // world * world, generator=torch.Generator().manual_seed(rank))
    bench = _Bench(rank, world, whole, whole.view(world, -1)[0].clone(), repeats)
    bench.stock()
    for name, config in METHODS:
        bench.method(name, config)
    if rank == 0:
        out.write_text(json.dumps(bench.lines))
    dist.barrier()
    os._exit(0)
