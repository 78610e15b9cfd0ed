"""One real rank of the judged method: a process with its own rows and nothing else of the other rank's.

Every collective is driven over gloo as in training, and counted twice: by the transport, from what the method says of
its messages, and by `cc.audit`, from the tensors that reach torch's collectives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import comm_compress as cc
from comm_compress.core.ledger import Collective
from comm_compress.core.segments import Segment, segments_of
from comm_compress.drive import transport
from experiments.judge.subject import channels
from experiments.judge.subject.job import WORLD, Fact, Job

SHAPES = ((64, 128), (30, 17))  # of the matrices whose gradients are exchanged, in units of the number of ranks
STEPS = 4
_PATIENCE_S = 60  # of gloo, for the other rank


def rows_of(rank: int, step: int, shape: tuple[int, int]) -> Tensor:
    """The gradient ``[W, n]`` of one rank: Gaussian, of the same size on every rank."""
    seed = 1_000_003 * (step + 1) + 7919 * rank + shape[0]
    return torch.randn(WORLD, shape[0] * shape[1], generator=torch.Generator().manual_seed(seed))


def segments(shape: tuple[int, int]) -> tuple[Segment, ...]:
    """The places of one weight of so many rows a rank."""
    return segments_of([("layer.weight", (shape[0] * WORLD, shape[1]))], WORLD)


def state_of(rank: int, shape: tuple[int, int]) -> cc.State:
    """A fresh state of a unit with this one weight, as the hooks make it for gradients."""
    return cc.State(f"unit{shape[0]}", rank, WORLD, 0, segments(shape), lasting=False)


def facts(job: Job) -> Iterator[Fact]:
    """Run all collectives as rank ``options["rank"]``; tensors go to a file in ``options["folder"]``."""
    rank, folder = int(job.options["rank"]), Path(job.options["folder"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=_PATIENCE_S),
    )
    try:
        yield from collectives(job, rank, folder)
    finally:
        dist.destroy_process_group()


def collectives(job: Job, rank: int, folder: Path) -> Iterator[Fact]:
    """Run all collectives over the group that there is; totals and contributions go to ``folder/rankR.pt``."""
    opened = channels.Opened()
    _warm_up(job, rank)  # compiles what is compiled: that writes files
    compressor = job.make()
    before = channels.variables(job.loaded.module, compressor)
    tensors: dict[str, Tensor] = {}
    for shape in SHAPES:
        state = state_of(rank, shape)
        for step in range(STEPS):
            with opened.watching():
                fact = _collective(compressor, state, rank, step, shape, tensors)
            yield fact
    after = channels.variables(job.loaded.module, compressor)
    changed = {name: digest for name, digest in after.items() if before.get(name) != digest}
    torch.save(tensors, folder / f"rank{rank}.pt")
    yield {"kind": "watched", "changed": changed, "opened": sorted(set(opened.seen))}
    yield {"kind": "replaced", "names": channels.replaced(job.library)}


def _warm_up(job: Job, rank: int) -> None:
    compressor = job.make()
    for shape in SHAPES:
        state = state_of(rank, shape)
        for step in range(2):
            rows = rows_of(rank, 1000 + step, shape)
            state.begin(compressor.mark(rows))
            with cc.audit():  # which asks once where temporary files lie
                transport.run(compressor.reduce_scatter(rows, state), _group(), Collective(rows.device))


def _collective(
    compressor: cc.Compressor,
    state: cc.State,
    rank: int,
    step: int,
    shape: tuple[int, int],
    tensors: dict[str, Tensor],
) -> dict[str, Any]:
    rows = rows_of(rank, step, shape)
    state.begin(compressor.mark(rows))
    collective = Collective(rows.device)
    with cc.audit() as audit:
        reduced = transport.run(compressor.reduce_scatter(rows, state), _group(), collective)
    name = f"{shape[0]}/{step}"
    tensors[f"total/{name}"] = reduced.total.clone()
    tensors[f"contribution/{name}"] = compressor.contribution(reduced.sent).float().clone()
    return {
        "kind": "collective",
        "case": name,
        "elements": rows[1:].numel(),
        "declared": compressor.traffic(rows.shape[1], WORLD),
        "counted": collective.bytes.total,
        "moved": audit.sent_bytes,
        "by_itself": sorted({f"{line.op} at {line.where}" for line in audit.lines if line.through != "comm_compress"}),
    }


def _group() -> Any:
    return dist.group.WORLD
