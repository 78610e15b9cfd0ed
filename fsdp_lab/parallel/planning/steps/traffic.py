"""What a step sends: every collective of a layout, its bytes for each rank, and how long the link needs for them.

Torch's own collectives are counted as gloo sends them (torch 2.13; `fsdp-lab bench layouts` shows the interface's
bytes): an all-reduce as a ring, a reduce-scatter as an all-reduce of the whole, parts of different sizes as
broadcasts. Ours are exchanges in which a rank sends only what others need (`comm_compress/drive/transport.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_lab.parallel.planning.devices import LinkSpeed
from fsdp_lab.parallel.planning.job import FLOAT, Job, Methods

STOCK = "none"


@dataclass(frozen=True)
class Collective:
    """``kind``: all_reduce, all_gather or reduce_scatter. ``elements``: of the whole tensor. ``parts``: how many
    of them are each rank's, where they differ. ``method``: what carries it. ``times``: how often it comes.
    """

    kind: str
    elements: float
    method: str
    parts: tuple[float, ...] | None = None
    times: int = 1

    @property
    def cost(self) -> str:
        """Under which name its cost is measured (`LinkSpeed.costs`)."""
        return f"{self.kind}{'' if self.parts is None else '_parts'} {self.method}"

    def sent(self, rank: int, world: int, bits: float) -> float:
        """Bytes that ``rank`` sends to others, once."""
        whole = self.elements * bits / 8
        own = whole / world if self.parts is None else self.parts[rank] * bits / 8
        if self.method == STOCK and self.kind == "reduce_scatter":
            return 2 * whole * (world - 1) / world
        if self.kind == "all_reduce":
            return 2 * whole * (world - 1) / world
        if self.kind == "reduce_scatter":
            return whole - own
        return (world - 1) * own

    def rounds(self, world: int) -> int:
        """Messages that must wait for one another."""
        if self.method != STOCK:
            return 2 if self.kind == "all_reduce" else 1
        return world - 1 if self.kind == "all_gather" else 2 * (world - 1)

    def seconds(self, world: int, bits: float, link: LinkSpeed, gap_s: float = 0.0) -> float:
        """Of one, on a link that was silent for ``gap_s`` before: the rank that sends most decides."""
        most = max(self.sent(rank, world, bits) for rank in range(world))
        free = min(link.burst_kb * 1e3, gap_s * link.bytes_per_s)
        beside = link.costs.get(self.cost)
        beside_s = self.rounds(world) * link.latency_ms / 1e3 if beside is None else beside.at(self.elements * FLOAT)
        return beside_s + max(0.0, most - free) / link.bytes_per_s


def total_seconds(
    collectives: Sequence[Collective], methods: Methods, world: int, link: LinkSpeed, compute_s: float
) -> float:
    """Of all of them, one after another, between which the ranks compute for ``compute_s`` in all."""
    gap = compute_s / max(1, sum(one.times for one in collectives))
    return sum(one.times * one.seconds(world, methods.bits_of(one.method), link, gap) for one in collectives)


def total_sent(collectives: Sequence[Collective], methods: Methods, world: int) -> list[float]:
    """How many bytes each rank sends in a step, by all collectives together."""
    return [
        sum(one.times * one.sent(rank, world, methods.bits_of(one.method)) for one in collectives)
        for rank in range(world)
    ]


def block_collectives(job: Job, layout: str, positions: Sequence[int], methods: Methods) -> list[Collective]:
    """Those of one block, forward and backward."""
    shape, carrier = job.shape, methods.activations
    whole = job.tokens * shape.width
    if layout == "tp":
        norms = 2 * shape.head_width if shape.family == "qwen3" else 0
        return [Collective("all_reduce", whole, carrier, times=4), *replicated(norms, methods)]
    if layout == "sp":
        keys = _both_ways(2 * job.tokens * shape.keys, positions, carrier, 1)
        return [*keys, *replicated(shape.block, methods)]
    entered = 2 if layout == "galaxy" else 1
    held = shape.block_rest + (0 if layout == "galaxy" else shape.mlp_parameters)
    return [*_both_ways(whole, positions, carrier, 2 * entered), *replicated(held, methods)]


def end_collectives(job: Job, layout: str, positions: Sequence[int], methods: Methods) -> list[Collective]:
    """Those of embedding, head and loss, and of what is replicated outside of the blocks."""
    shape, carrier = job.shape, methods.activations
    number = Collective("all_reduce", 1, STOCK)
    if layout == "sp":
        return [number, *replicated(shape.word_parameters + shape.rest, methods)]
    exact = STOCK if carrier == STOCK else "identity"
    statistics = Collective("all_gather", 3 * job.head_tokens * len(positions), exact)
    embedded, seen = job.tokens * shape.width, job.head_tokens * shape.width
    if layout == "tp":
        both = [Collective("all_reduce", embedded, carrier), Collective("all_reduce", seen, carrier)]
        return [*both, statistics]
    ways = [*_both_ways(embedded, positions, carrier, 1), *_both_ways(seen, positions, carrier, 1)]
    pairs = [number] if shape.is_masked else []
    return [*ways, statistics, *pairs, *replicated(shape.rest, methods)]


def replicated(elements: int, methods: Methods) -> list[Collective]:
    """The sum of a gradient that all ranks hold whole: by a method it is reduced, then gathered as it is."""
    if not elements:
        return []
    if methods.gradients == STOCK:
        return [Collective("all_reduce", elements, STOCK)]
    return [
        Collective("reduce_scatter", elements, methods.gradients),
        Collective("all_gather", elements, "identity"),
    ]


def _both_ways(elements: int, positions: Sequence[int], method: str, times: int) -> list[Collective]:
    """An all-gather and the reduce-scatter that is its gradient (or the other way round), ``times`` each."""
    total = sum(positions)
    parts = None if len(set(positions)) == 1 else tuple(elements * p / total for p in positions)
    return [Collective(kind, elements, method, parts, times) for kind in ("all_gather", "reduce_scatter")]


def bucket_bytes(parameters: int) -> list[int]:
    """The buckets of DDP for so many float32 gradients, as they are sent: one of 1 MiB, then of 25 MiB each."""
    left, sizes, size = parameters * FLOAT, [], 1 << 20
    while left > 0:
        sizes.append(min(size, left))
        left, size = left - size, 25 << 20
    return sizes


def stages_message(job: Job, methods: Methods) -> float:
    """Bytes of one micro-batch's activations between two stages."""
    elements = math.ceil(job.tokens / job.micro_batches) * job.shape.width
    return elements * methods.bits_of(methods.activations) / 8
