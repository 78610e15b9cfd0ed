"""Claimed bytes against the network interface's own counter, and how full each method keeps a slow link.

    sudo python -m experiments.bench.link [--rate 200mbit] [--ranks 2] [--elements 16777216] [--repeats 5] [--json FILE]

One network namespace a rank, joined by veth pairs and shaped to the rate. Every method runs reduce-scatters (and
all-gathers, where it may carry parameters) of one unit through the same transport that training uses; `stock` is
torch's own collective. Columns:

    ledger      bytes a rank sent, as our ledger (and so the results row) counts them; for stock: the shapes' minimum
    interface   bytes the rank's interface sent meanwhile, TCP/IP headers and acknowledgements included
    link use    ledger bytes / (wire time x rate), the median collective; stock: interface bytes, since gloo sends
                more than it need
    with codec  the same over the whole collective, encoding and decoding included

The shaper lets its first 5 ms through unhindered, so a link use can come out a few percent high.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
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
from experiments.network.namespaces import Namespaces
from experiments.network.rates_and_delays import parse_rate
from fsdp_lab.measure.wire_check import interface_counters
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

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


def table(lines: list[dict[str, Any]], repeats: int, rate_bytes: float | None) -> str:
    """The measurements as a table for a terminal, a line for each method."""
    heads = ["ledger MB", "interface MB", "off by", "ratio claimed", "counted", "link use", "with codec"]
    rows = [f"{'method':26s}{'collective':16s}" + "".join(f"{h:>15s}" for h in heads)]
    for line in lines:
        ledger, interface = line["ledger_bytes"], line["interface_bytes"]
        useful = interface if line["method"] == "stock" else ledger
        use, whole = (
            f"{useful / (repeats * line[key] * rate_bytes):.3f}" if rate_bytes else "-" for key in ("wire_s", "whole_s")
        )
        cells = [f"{ledger / 1e6:.2f}", f"{interface / 1e6:.2f}", f"{100 * (interface / ledger - 1):+.2f} %"]
        cells += [f"{line['raw_bytes'] / ledger:.3f}", f"{line['raw_bytes'] / interface:.3f}", use, whole]
        rows.append(f"{line['method']:26s}{line['op']:16s}" + "".join(f"{c:>15s}" for c in cells))
    return "\n".join(rows)


def main() -> int:
    """Build the network, run the ranks in it, print the table."""
    parser = program("experiments.bench.link", __doc__)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--ranks", type=whole(2), default=2)
    parser.add_argument("--elements", type=whole(1), default=1 << 24, help="float32 elements of the unit")
    parser.add_argument("--repeats", type=whole(1), default=5)
    parser.add_argument("--json", type=new_file())
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank is not None:
        rank_main(options.elements, options.repeats, options.as_rank)
    with user_errors("bench_link"), tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lines.json"
        command = [sys.executable, "-m", "experiments.bench.link", "--as-rank", str(out)]
        command += ["--elements", str(options.elements), "--repeats", str(options.repeats)]
        with Namespaces(options.ranks, options.rate) as net:
            code = net.run(command, rank_environment(options.ranks))
        if code:
            return code
        lines = json.loads(out.read_text())
    bits = parse_rate(options.rate)
    print(
        f"{options.ranks} ranks, {options.rate}, {options.elements:,} float32 elements, {options.repeats} collectives"
    )
    print(table(lines, options.repeats, bits / 8 if bits else None))
    if options.json is not None:
        settings = {k: v for k, v in vars(options).items() if k not in ("json", "as_rank")}
        options.json.write_text(json.dumps({"settings": settings, "lines": lines}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main())
