"""How long single collectives take behind one link: the rank's program of `experiments.links.calibrate`.

Kinds: ``exchange`` (our transport's pairs, as every hooked collective uses them), ``all_gather`` and
``reduce_scatter`` (torch's own; gloo's reduce-scatter is an all-reduce of the whole), ``all_reduce`` (one float: the
trainer's norm). A line is a kind, the payload that a rank sends to others, and a call's seconds: many calls one after
another, so that the shaper's bucket is empty and no rank waits for another to wake up; the median of several such rows.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.network.namespaces import Namespaces
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.settings.flags import program

Line = dict[str, Any]
_ROW_S = 0.15  # a row of calls takes about so long


def measure(ranks: int, rate: str, units: Sequence[int], repeats: int) -> list[Line]:
    """Start ``ranks`` ranks at ``rate`` and return their lines, for units of so many bytes. RuntimeError when a rank
    fails."""
    with tempfile.TemporaryDirectory() as folder, Namespaces(ranks, rate) as net:
        out = Path(folder) / "lines.json"
        command = [sys.executable, "-m", "experiments.links.collective_times", str(out), str(repeats), *map(str, units)]
        if code := net.run(command, rank_environment(ranks)):
            raise RuntimeError(f"collectives of {ranks} ranks at {rate}: exit code {code}")
        lines: list[Line] = json.loads(out.read_text())
    return lines


def rank_main(out: Path, repeats: int, units: Sequence[int]) -> None:
    """Run one rank: every kind of collective at every size; rank 0 writes the lines."""
    import torch
    import torch.distributed as dist

    import comm_compress as cc
    from comm_compress.core.state import State
    from comm_compress.drive._compat import all_gather_single, reduce_scatter_single
    from comm_compress.integrations.fsdp.hooks import CompressedAllGather

    dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rank, world, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    lines: list[Line] = []

    def take(kind: str, sent: int, call: Callable[[], object]) -> None:
        def row(calls: int) -> float:
            dist.barrier()
            call()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - start) / calls

        calls = torch.tensor([max(2, min(100, round(_ROW_S / row(2))))])
        dist.broadcast(calls, 0)
        lines.append(
            {"kind": kind, "bytes": sent, "seconds": statistics.median(row(int(calls)) for _ in range(repeats))}
        )

    identity = cc.make("identity")
    assert identity is not None
    for unit in units:
        whole = torch.randn(unit // 4 // world * world)
        shard = whole.view(world, -1)[0].clone()
        gathered, sent = torch.empty_like(whole), shard.nbytes * (world - 1)
        hook = CompressedAllGather(State("unit", rank, world), identity, cc.Ledger())
        take("exchange", sent, lambda h=hook, g=gathered, s=shard: h(g, s, group))  # type: ignore[misc]
        take("all_gather", sent, lambda g=gathered, s=shard: all_gather_single(g, s))  # type: ignore[misc]
        take("reduce_scatter", sent, lambda s=shard, w=whole: reduce_scatter_single(s, w))  # type: ignore[misc]
    one = torch.ones(1)
    take("all_reduce", 8 * (world - 1), lambda: dist.all_reduce(one))
    if rank == 0:
        out.write_text(json.dumps(lines))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a plain exit


if __name__ == "__main__":
    parser = program("experiments.links.collective_times", __doc__)
    parser.add_argument("out", type=Path, help="file that gets the times")
    parser.add_argument("repeats", type=int)
    parser.add_argument("sizes", type=int, nargs="+")
    words = parser.parse_args()
    rank_main(words.out, words.repeats, words.sizes)
