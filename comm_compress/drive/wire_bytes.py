"""How many bytes a rank puts on the wire in a collective: what gloo does, and what a ring needs.

With W ranks, and an input of ``size`` bytes on each:

| collective | ring | gloo (torch 2.13), where it differs |
|---|---|---|
| all_gather | (W - 1) size | |
| reduce_scatter | (W - 1) / W size | it is an all-reduce: 2 (W - 1) / W size |
| all_reduce | 2 (W - 1) / W size | |
| all_to_all | what is for other ranks | |
| broadcast | (W - 1) / W size, mean over the ranks | a tree: size, 0 to log2 W times |
| reduce | the same | a reduce-scatter, then each part to the root: size, but (W - 1) / W size on the root |
| gather, scatter | to or from the root: size, or what is for other ranks | |
| send | size | |
| recv, barrier | 0 | |

Checked against the interface's counter by `experiments.bench.traffic.audit`, whose table is
results/reference/links/audit.md.
"""

from __future__ import annotations

from typing import NamedTuple


class Moved(NamedTuple):
    """One collective as this rank calls it; bytes. ``own``: the part of ``size`` that is for this rank itself
    (all_to_all and scatter alone); ``root``: the rank in the group that all send to or receive from."""

    op: str
    size: int
    world: int
    rank: int
    own: int = 0
    root: int = 0


def ring_bytes(moved: Moved) -> int:
    """What this rank sends to others when each collective is a ring that sends no byte more than needed."""
    op, size, world, rank, own, root = moved
    if world < 2 or op in ("recv", "barrier"):
        return 0
    if op == "all_gather":
        return (world - 1) * size
    if op == "all_reduce":
        return round(2 * (world - 1) * size / world)
    if op in ("reduce_scatter", "broadcast", "reduce"):
        return round((world - 1) * size / world)
    if op in ("all_to_all", "scatter"):
        return size - own
    if op == "gather":
        return 0 if rank == root else size
    assert op == "send", op
    return size


def gloo_bytes(moved: Moved) -> int:
    """What this rank sends to others when gloo runs the collective."""
    op, size, world, rank, _, root = moved
    if world < 2:
        return 0
    if op == "reduce_scatter":
        return ring_bytes(moved._replace(op="all_reduce"))
    if op == "broadcast":
        return size * _tree_sends((rank - root) % world, world)
    if op == "reduce":
        return round((world - 1) * size / world) if rank == root else size
    return ring_bytes(moved)


def _tree_sends(place: int, world: int) -> int:
    """How many times the rank that is ``place`` ranks behind the root hands a broadcast on, in a binomial tree."""
    return sum(place < step <= world - 1 - place for step in (1 << i for i in range(world.bit_length())))
