"""Matrices in shards, gradients for them, and torch's own optimizers on whole ones: what ours is held to."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import comm_compress as cc
from comm_compress.core.segments import rows_of_rank

# fewer rows than ranks, one row, rows that no number of ranks divides, tall, wide and square ones
SHAPES = {"a.wide": (2, 9), "a.row": (1, 4), "a.odd": (7, 5), "b.tall": (64, 3), "b.square": (24, 24)}
UNITS = {"a": ["a.wide", "a.row", "a.odd"], "b": ["b.tall", "b.square"]}
OTHERS = {"embedding": (11, 4), "bias": (3,)}
SETTINGS: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1}


def weights(shapes: Mapping[str, Sequence[int]] = SHAPES) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(*shape, generator=generator)) for name, shape in shapes.items()}


def gradients(step: int, shapes: Mapping[str, Sequence[int]] = SHAPES) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1 + step)
    return {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}


class Virtual:
    """Matrices of ``world`` virtual ranks, with `cc.optim.Muon` for them and for ``others``."""

    def __init__(
        self,
        world: int,
        method: str | None = None,
        others: Mapping[str, nn.Parameter] | None = None,
        how: Any = "all_gather",
    ) -> None:
        self.whole, self.world, self.others = weights(), world, dict(others or {})
        self.shards = {
            name: [nn.Parameter(p.detach()[rows_of_rank(p.shape[0], rank, world)]) for rank in range(world)]
            for name, p in self.whole.items()
        }
        units = {unit: {name: self.shards[name] for name in names} for unit, names in UNITS.items()}
        self.handle = cc.optim.VirtualHandle(units, method, exchange=how, seed=5)
        self.optimizer = cc.optim.Muon(self.handle, self.others.values(), **SETTINGS)

    def step(self, number: int, without: Sequence[str] = ()) -> None:
        for name, gradient in gradients(number).items():
            for rank, shard in enumerate(self.shards[name]):
                rows = rows_of_rank(gradient.shape[0], rank, self.world)
                shard.grad = None if name in without else gradient[rows].clone()
        for name, gradient in gradients(number, OTHERS).items():
            if name in self.others:
                self.others[name].grad = gradient
        self.optimizer.step()


class Stock:
    """The same matrices, whole, with `torch.optim.Muon`, and others with `torch.optim.AdamW`."""

    def __init__(self) -> None:
        self.whole, self.others = weights(), copy.deepcopy(weights(OTHERS))
        self._muon = torch.optim.Muon(self.whole.values(), adjust_lr_fn="match_rms_adamw", **SETTINGS)
        self._adamw = torch.optim.AdamW(self.others.values(), betas=(0.9, 0.95), fused=True, **SETTINGS)

    def step(self, number: int, without: Sequence[str] = ()) -> None:
        for name, gradient in gradients(number).items():
            self.whole[name].grad = None if name in without else gradient
        for name, gradient in gradients(number, OTHERS).items():
            self.others[name].grad = gradient
        self._muon.step()
        self._adamw.step()
