"""What a divided model exchanges: one place of `cc.parallel` for each spot where activations pass between ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

import comm_compress as cc
from fsdp_lab.parallel.division.layouts import Layout
from fsdp_lab.parallel.division.shares import counts_for_all, ranges

Collective = Callable[[Tensor], Tensor]
"""A differentiable collective over activations."""


@dataclass
class Wiring:
    """The ranks of one model, what each of them has a share of, and what carries activations between them.

    ``activations`` carries what `Activations` was told to compress; ``exact`` what must not be touched, the statistics
    of the loss. ``shares``: how much each rank of ``group`` takes of everything that is divided.
    """

    layout: Layout
    group: dist.ProcessGroup
    shares: Sequence[float]
    activations: cc.parallel.Activations
    exact: cc.parallel.Activations
    length: int = field(default=0, init=False)
    """Positions of the sequences that are under way."""

    @property
    def rank(self) -> int:
        """This process among the ranks that share the model."""
        return int(dist.get_rank(self.group))

    @property
    def world(self) -> int:
        """How many ranks share the model."""
        return int(dist.get_world_size(self.group))

    def mine(self, what: str, total: int) -> range:
        """This rank's part of ``total`` heads, columns or words. ValueError when some rank would get none."""
        return ranges(counts_for_all(what, total, self.shares))[self.rank]

    def positions(self) -> list[int]:
        """How many positions of a sequence each rank works on where activations are divided by positions."""
        return counts_for_all("positions", self.length, self.shares)

    def parts(self) -> list[range]:
        """Which positions each rank has between the parts of the model, where they are divided."""
        return ranges(self.positions())

    def my_positions(self) -> range:
        """Which positions this rank has between the parts of the model; all, where they are not divided."""
        return self.parts()[self.rank] if self.layout.by_positions else range(self.length)

    def enter(self, name: str) -> Collective:
        """The way into a part that needs all positions and holds a part of the weights (``x``: ``[B, T, H]``)."""
        place = self.activations.place(name, self.group)
        if self.layout.by_positions:
            return lambda x: place.all_gather(x, 1, self.positions())
        return place.copy

    def enter_some(self, name: str) -> Callable[[Tensor, Sequence[int]], Tensor]:
        """As `enter`, of some positions only: ``x`` ``[n, H]``, and how many of them each rank has."""
        place = self.activations.place(name, self.group)
        if self.layout.by_positions:
            return lambda x, sizes: place.all_gather(x, 0, sizes)
        return lambda x, sizes: place.copy(x)

    def leave(self, name: str) -> Collective:
        """The way out of such a part: every rank has computed a part of the sum."""
        place = self.activations.place(name, self.group)
        if self.layout.by_positions:
            return lambda x: place.reduce_scatter(x, 1, self.positions())
        return place.all_reduce

    def gather_keys(self, name: str) -> Collective:
        """All positions' keys and values from every rank's (``[B, heads, positions, d]``)."""
        place = self.activations.place(name, self.group)
        return lambda x: place.all_gather(x, 2, self.positions())
