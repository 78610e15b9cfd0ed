"""One collective's place in a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from comm_compress.integrations.parallel.places.direction import Direction
from comm_compress.integrations.parallel.places.methods import check_parts
from comm_compress.integrations.parallel.places.operators import AllGather, AllReduce, Copy, ReduceScatter
from comm_compress.integrations.parallel.places.recomputation import Recomputation

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Place:
    """Where in a model activations are exchanged, and over which group. `Activations.place` makes it.

    Its operators are differentiable and take float32, bfloat16 and float16 tensors of any shape (float64, too, where no
    method carries them); their results are the caller's own memory, in the dtype of the input; sums by a method are
    taken in float32. All ranks of the group must call them in the same order. ``forward`` carries activations,
    ``backward`` their gradients.
    """

    def __init__(
        self,
        name: str,
        group: dist.ProcessGroup,
        sizes: tuple[int, ...] | None,
        forward: Direction,
        backward: Direction,
        recomputation: Recomputation,
    ) -> None:
        self.name, self.group, self.sizes = name, group, sizes
        self.forward, self.backward = forward, backward
        self.rank, self.world = group.rank(), group.size()
        self._recomputation = recomputation

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of ``x`` over the group, the same bits on every rank; backward hands the gradient on as it is.

        Behind a layer whose output every rank has a part of (row-parallel). A reduce-scatter and an all-gather, both
        by the method of ``forward``. Megatron's g. ValueError for tensors that are not of a float dtype.
        """
        self._check(x)
        return x if self.world == 1 else AllReduce.apply(x, self)  # type: ignore[no-untyped-call]

    def copy(self, x: Tensor) -> Tensor:
        """Return ``x`` as it is, which is equal on all ranks; backward sums the gradient over the group.

        In front of a layer that uses all of ``x`` for a part of its output (column-parallel). Megatron's f.
        ValueError for tensors that are not of a float dtype.
        """
        self._check(x)
        return x if self.world == 1 else Copy.apply(x, self)  # type: ignore[no-untyped-call]

    def all_gather(self, x: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
        """Return all ranks' ``x`` joined along ``dim``; backward is `reduce_scatter` of the gradient.

        ``sizes``: how many rows of ``dim`` each rank has, where they differ (default: the place's own; None: the same
        on all). ValueError when this rank's are others, and for tensors that are not of a float dtype.
        """
        self._check(x)
        dim, sizes = self._dim(x, dim), self._sizes(sizes)
        if sizes is not None and x.shape[dim] != sizes[self.rank]:
            raise ValueError(
                f"{self.name}: all_gather of dimension {dim} of {tuple(x.shape)} on rank {self.rank}, and "
                f"sizes = {list(sizes)} has {sizes[self.rank]} there"
            )
        return x if self.world == 1 else AllGather.apply(x, self, dim, sizes)  # type: ignore[no-untyped-call]

    def reduce_scatter(self, x: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
        """Return this rank's part of ``dim`` of the sum of ``x`` over the group; backward is `all_gather`.

        ``sizes``: as in `all_gather`. ValueError when ``dim`` does not split so (equally, without sizes), and for
        tensors that are not of a float dtype.
        """
        self._check(x)
        dim, sizes = self._dim(x, dim), self._sizes(sizes)
        if sizes is not None and x.shape[dim] != sum(sizes):
            raise ValueError(
                f"{self.name}: reduce_scatter of dimension {dim} of {tuple(x.shape)}, and sizes = {list(sizes)} are "
                f"{sum(sizes)} rows"
            )
        if sizes is None and x.shape[dim] % self.world:
            raise ValueError(
                f"{self.name}: reduce_scatter of dimension {dim} of {tuple(x.shape)} over {self.world} ranks, which do "
                "not divide it; say how many rows each rank gets: sizes=[...]"
            )
        return x if self.world == 1 else ReduceScatter.apply(x, self, dim, sizes)  # type: ignore[no-untyped-call]

    def once(self, send: Callable[[], Tensor]) -> Tensor:
        """Return what ``send`` gives, or gave in the forward that is being recomputed."""
        return self._recomputation.once(self.name, send)

    def _check(self, x: Tensor) -> None:
        is_stock = self.forward.method is None and self.backward.method is None
        if x.dtype not in FLOATS and not (is_stock and x.dtype == torch.float64):
            raise ValueError(f"{self.name}: a tensor of {x.dtype} cannot travel here, only fp32, bf16 and fp16")

    def _dim(self, x: Tensor, dim: int) -> int:
        if not -x.dim() <= dim < x.dim():
            raise ValueError(f"{self.name}: dim = {dim} of a tensor of shape {tuple(x.shape)}")
        return dim % x.dim()

    def _sizes(self, sizes: Sequence[int] | None) -> tuple[int, ...] | None:
        chosen = self.sizes if sizes is None else known_sizes(self.name, sizes, self.world)
        if chosen is not None:
            for key, way in (("forward", self.forward), ("backward", self.backward)):
                check_parts(key, self.name, way.method)
        return chosen


def known_sizes(name: str, sizes: Sequence[int], world: int) -> tuple[int, ...] | None:
    """Return ``sizes`` as a tuple; None when all are equal. ValueError when they are no sizes of ``world`` parts."""
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes)
    if not whole or len(sizes) != world:
        raise ValueError(
            f"{name}: sizes = {list(sizes)}: must be {world} whole numbers of 0 or more, one for each rank"
        )
    return None if len(set(sizes)) == 1 else tuple(sizes)
