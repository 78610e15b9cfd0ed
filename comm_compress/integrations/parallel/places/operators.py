"""Collectives over activations as operators that autograd knows, each with the collective that is its gradient.

Those of Megatron-LM (Shoeybi et al., 2019, arXiv 1909.08053: f is `Copy`, g is `AllReduce`; Korthikanti et al., 2022,
arXiv 2205.05198: `AllGather` and `ReduceScatter`). What encoding loses is passed through as if nothing were lost
(the straight-through estimator, Bengio et al., 2013, arXiv 1308.3432): a gradient is that of the exact collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from comm_compress.integrations.parallel.places.direction import Direction


class Place(Protocol):
    """Who runs the collectives of both directions: `comm_compress.integrations.parallel.places.place.Place`."""

    forward: Direction
    backward: Direction

    def once(self, send: Callable[[], Tensor]) -> Tensor:
        """Return what ``send`` gives, or gave in the forward that is being recomputed."""


class AllReduce(Function):
    """Forward the sum over ranks, backward nothing: every rank's part has the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Place) -> Tensor:
        """Return the sum of all ranks' ``x``, which may have any shape."""
        return place.once(lambda: place.forward.all_reduce(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The sum's gradient is that of each part."""
        return gradient, None


class Copy(Function):
    """Forward nothing, backward the sum over ranks: what all ranks hold alike, each uses for a part of the work."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Place) -> Tensor:
        """Return ``x``, which has any shape and is equal on all ranks."""
        ctx.place = place
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Every rank has a part of the gradient."""
        return ctx.place.backward.all_reduce(gradient), None


class AllGather(Function):
    """Forward all ranks' parts, backward this rank's part of the summed gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Place, dim: int, sizes: tuple[int, ...] | None) -> Tensor:
        """Return all ranks' parts joined along ``dim``; ``x`` is this rank's."""
        ctx.place, ctx.dim, ctx.sizes = place, dim, sizes
        return place.once(lambda: place.forward.all_gather(x, dim, sizes))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Every rank has a gradient of every part."""
        return ctx.place.backward.reduce_scatter(gradient, ctx.dim, ctx.sizes), None, None, None


class ReduceScatter(Function):
    """Forward this rank's part of the sum, backward all ranks' gradients of their parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Place, dim: int, sizes: tuple[int, ...] | None) -> Tensor:
        """Return this rank's part, along ``dim``, of the sum of all ranks' ``x``."""
        ctx.place, ctx.dim, ctx.sizes = place, dim, sizes
        return place.once(lambda: place.forward.reduce_scatter(x, dim, sizes))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Every rank has the gradient of its own part."""
        return ctx.place.backward.all_gather(gradient, ctx.dim, ctx.sizes), None, None, None
