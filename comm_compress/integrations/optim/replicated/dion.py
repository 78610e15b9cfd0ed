"""Dion: orthonormal updates of low rank, of which replicas exchange the factors.

Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan and Langford, "Dion: Distributed Orthonormalized Updates", arXiv 2504.05295.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Generator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from comm_compress.core.rounds import AllReduce, Request
from comm_compress.core.state import State
from comm_compress.integrations.optim.replicated.exchange import Replicas, UnderWay, layout
from comm_compress.integrations.optim.replicated.optimizer import Params, ReplicaOptimizer
from comm_compress.integrations.optim.replicated.parts.adam import Betas, check_betas, move, take_in
from comm_compress.integrations.optim.replicated.parts.whole import check_whole_matrices
from comm_compress.integrations.replicas.fragments import Fragment

_TINY = 1e-8  # beside the length of a column, which is divided by


class _Made(NamedTuple):
    """What an exchange brings: factors ``[A, r]`` and ``[B, r]`` of every matrix, other parameters' mean gradients."""

    left: list[Tensor]
    right: list[Tensor]
    others: list[Tensor]


class Dion(ReplicaOptimizer):
    """Dion for ``matrices``, AdamW for all other parameters (arXiv 2504.05295).

    Each replica keeps a momentum M of its own for every matrix X ``[A, B]``; Q ``[B, r]`` is the same on all:

        B = M + G                                       G: this replica's own gradient
        P = orthonormal(mean of all B Q)                all-reduce of r A floats, then QR
        R = mean of all B^T P                           all-reduce of r B floats
        M = B - (1 - momentum) P R^T                    what was not used stays: error feedback
        Q = R, its columns divided by their lengths
        X = (1 - lr weight_decay) X - lr sqrt(A / B) P Q^T

    All of it is linear in B until R is normalised, so replicas end where one with the mean gradient would, though no
    gradient of a matrix is exchanged, and though their momenta differ (only the mean of these is the one's). The rank
    is r = ``rank_fraction`` of the shorter side. Gradients of the other parameters are averaged exactly, in the first
    of the two all-reduces, and go to AdamW with ``betas`` and ``eps``.

    ``matrices``: names of parameters of two dimensions; `comm_compress.optim.matrices` finds those of a model's blocks.
    ``lr``: AdamW's and the matrices', unless a group of ``params`` has its own; the public code has 0.02 there.
    ``seed``: of the first Q, drawn for each matrix by its name.

    What the paper leaves to the implementation, and what differs:

    - The QR decomposition is torch's (Householder), in float32; the public code has a randomised Cholesky QR for large
      matrices on GPUs.
    - A matrix is never transposed; the public code turns wide ones, so that the longer side is orthonormalised.
    - A matrix whose mean B is zero is not moved, and keeps its Q, which would otherwise vanish for good.
    - Replicas hold whole matrices: sharded inside a replica they are refused, as the paper's further collectives
      among shards are not here.

    Above two replicas the network adds up floats in an order of its own, the same on all of them.
    Raises ValueError for names of no matrix, and for shards.
    """

    def __init__(
        self,
        replicas: Replicas,
        matrices: Collection[str],
        params: Params | None = None,
        *,
        lr: float,
        momentum: float = 0.95,
        rank_fraction: float = 0.25,
        weight_decay: float = 0.0,
        betas: Betas = (0.9, 0.95),
        eps: float = 1e-8,
        seed: int = 0,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum = {momentum!r}: must be at least 0 and less than 1")
        if not 0 < rank_fraction <= 1:
            raise ValueError(f"rank_fraction = {rank_fraction!r}: must be above 0 and at most 1")
        check_betas(betas)
        self._matrices, self.momentum, self.betas, self.eps = frozenset(matrices), momentum, betas, eps
        named = {name: p for fragment in replicas.fragments for name, p in fragment.parameters.items()}
        check_whole_matrices(self._matrices, named, "Dion")
        super().__init__(replicas, params, {"lr": lr, "weight_decay": weight_decay})
        for name, p in named.items():
            if name in self._matrices:
                self.state[p]["Q"] = _first(name, p, max(1, round(rank_fraction * min(p.shape))), seed)
            else:
                self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)

    def _begin(self, fragment: Fragment, gradients: list[dict[str, Tensor]]) -> UnderWay:
        return self._replicas.begin(fragment, gradients, partial(self._factors, fragment))

    def _factors(self, fragment: Fragment, rows: Tensor, state: State) -> Generator[Request, None, _Made]:
        """The rounds of one replica with its gradients ``[1, n]``: factors of every matrix's mean, and the rest."""
        parts = {s.name: rows[0, s.start : s.stop] for s in layout(fragment.local(), 1)}
        chosen = [name for name in fragment.parameters if name in self._matrices]
        shapes = [fragment.parameters[name].shape for name in chosen]
        qs = [self.state[fragment.parameters[name]]["Q"] for name in chosen]
        flat = torch.cat([rows.new_empty(0), *(parts[name] for name in chosen)]).unsqueeze(0)
        old = state.get("momentum")
        new = state.spare("momentum", flat, torch.float32).copy_(flat)
        if old is not None:
            new += old
        sizes = [math.prod(shape) for shape in shapes]
        sums = [part.view(shape) for part, shape in zip(torch.split(new[0], sizes), shapes, strict=True)]
        others = [part for name, part in parts.items() if name not in self._matrices]
        products = [b @ q for b, q in zip(sums, qs, strict=True)]
        mean = yield from _mean([*products, *others], state.world)
        left = [_orthonormal(product) for product in mean[: len(chosen)]]
        right = yield from _mean([b.T @ p for b, p in zip(sums, left, strict=True)], state.world)
        for b, p, r in zip(sums, left, right, strict=True):
            b.addmm_(p, r.T, alpha=-(1 - self.momentum))
        if chosen:
            state.propose("momentum", new)
        return _Made(left, right, mean[len(chosen) :])

    def _apply(self, fragment: Fragment, made: _Made) -> None:
        factors, others = iter(zip(made.left, made.right, strict=True)), iter(made.others)
        for name, p in fragment.parameters.items():
            if name in self._matrices:
                self._move_matrix(p, *next(factors))
            else:
                self._move_other(p, next(others))

    def _move_matrix(self, p: nn.Parameter, left: Tensor, right: Tensor) -> None:
        mine = self._decay(p)
        lengths = right.norm(dim=0)
        if not bool(lengths.any()):
            return
        q = self.state[p]["Q"].copy_(right / (lengths + _TINY))
        rate = self._settings(p)["lr"] * math.sqrt(mine.shape[0] / mine.shape[1])
        mine.addmm_(left.to(mine.dtype), q.T.to(mine.dtype), alpha=-rate)

    def _move_other(self, p: nn.Parameter, gradient: Tensor) -> None:
        mine, state = self._decay(p), self.state[p]
        step = int(state["step"])
        take_in(gradient.view_as(mine).to(mine.dtype), state["exp_avg"], state["exp_avg_sq"], self.betas)
        corrections = 1 - self.betas[0] ** step, 1 - self.betas[1] ** step
        move(mine, state["exp_avg"], state["exp_avg_sq"], self._settings(p)["lr"], self.eps, *corrections)


def _mean(tensors: Sequence[Tensor], world: int) -> Generator[Request, Tensor, list[Tensor]]:
    """One all-reduce of all ``tensors``; their means, in the same shapes. Nothing is sent where there are none."""
    if not tensors:
        return []
    total = yield AllReduce(torch.cat([t.reshape(-1) for t in tensors]), "sum", "values")
    parts = torch.split(total / world, [t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def _orthonormal(product: Tensor) -> Tensor:
    """Return orthonormal columns that span those of ``product`` ``[A, r]``; NaN where it is not finite."""
    if not bool(torch.isfinite(product).all()):
        return torch.full_like(product, torch.nan)
    made: Tensor = torch.linalg.qr(product).Q
    return made


def _first(name: str, p: nn.Parameter, rank: int, seed: int) -> Tensor:
    """Return random numbers ``[B, rank]`` to begin with, a function of the name and the seed alone."""
    number = int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest(), "little")
    generator = torch.Generator().manual_seed(number)
    return torch.randn(p.shape[1], rank, generator=generator).to(p.device)
