"""Muon over matrices that are sharded, and AdamW over everything else, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from comm_compress.integrations.optim.gathers import Gathers, UnderWay
from comm_compress.integrations.optim.matrices import Unit, local
from comm_compress.integrations.optim.newton_schulz import matched, orthogonalised


class Muon(torch.optim.Optimizer):
    """Muon (Jordan 2024) for the matrices of ``gathers``, AdamW for ``others``.

    The momentum of a matrix is orthogonalised (`newton_schulz`) and scaled by 0.2 sqrt(max(A, B)), so that rate and
    weight decay are those of AdamW (Liu et al., arXiv 2502.16982). It is `torch.optim.Muon` with
    ``adjust_lr_fn="match_rms_adamw"`` and its Nesterov momentum, on matrices of which each rank has rows: momentum is
    kept and updated where the rows are, and ``gathers`` (`attach`, `VirtualHandle`) brings the update together.

    ``others``: parameters, or groups of them as `torch.optim.AdamW` takes them. ``lr``, ``weight_decay`` (decoupled):
    of all; a group may have its own. ``momentum``: of matrices, 0 to 1. ``betas``, ``eps``: AdamW's.
    ``adamw``: which of torch's implementations of AdamW, as keywords ``foreach`` and ``fused``.
    The first of ``param_groups`` are the matrices. All state is made at once, so that ``state_dict()`` has it before
    the first step. A parameter without a gradient is left alone; of a matrix, all ranks must have one, or none.
    """

    def __init__(
        self,
        gathers: Gathers,
        others: Iterable[nn.Parameter] | Iterable[Mapping[str, Any]],
        *,
        lr: float,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        adamw: Mapping[str, bool] | None = None,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum = {momentum!r}: must be at least 0 and less than 1")
        self._gathers, self._adamw = gathers, dict(adamw or {"fused": True})
        shards = [shard for unit in gathers.units for matrix in unit.matrices for shard in matrix.shards]
        rest = list(others)
        groups = [dict(one) for one in rest if isinstance(one, Mapping)] or [{"params": rest}] * bool(rest)
        beta1, beta2 = betas
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([{"params": shards}, *groups], {**defaults, "beta1": beta1, "beta2": beta2, "eps": eps})
        for shard in shards:
            self.state[shard]["momentum_buffer"] = torch.zeros_like(shard)
        for group in self.param_groups[1:]:
            for p in group["params"]:
                on = p.device if self._adamw.get("fused") else torch.device("cpu")
                self.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=on)
                self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; collective. Returns what ``closure``, if given, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update_matrices()
        for group in self.param_groups[1:]:
            self._update_others(group)
        return loss

    def _update_matrices(self) -> None:
        """Exchange each unit's rows while the one before it is being orthogonalised."""
        begun = None
        for unit in self._gathers.units:
            here = unit._replace(matrices=tuple(matrix for matrix in unit.matrices if matrix.has_gradient))
            if not here.matrices:
                continue
            following = here, self._gathers.begin(here, self._updates(here), orthogonalised)
            if begun is not None:
                self._apply(*begun)
            begun = following
        if begun is not None:
            self._apply(*begun)

    def _updates(self, unit: Unit) -> list[list[Tensor]]:
        """Move each shard's momentum; the updates' rows, of each rank that this process is."""
        momentum = self.param_groups[0]["momentum"]
        by_rank: list[list[Tensor]] = []
        for shards in zip(*(matrix.shards for matrix in unit.matrices), strict=True):
            rows = []
            for shard in shards:
                assert shard.grad is not None, "looked for before"
                gradient, buffer = local(shard.grad), local(self.state[shard]["momentum_buffer"])
                buffer.lerp_(gradient, 1 - momentum)
                rows.append(gradient.lerp(buffer, momentum))
            by_rank.append(rows)
        return by_rank

    def _apply(self, unit: Unit, under_way: UnderWay) -> None:
        """Move every shard by its rows of the orthogonalised updates."""
        group = self.param_groups[0]
        by_rank = under_way.finish()
        for i, matrix in enumerate(unit.matrices):
            rate = group["lr"] * matched(matrix.shape)
            for shard, directions in zip(matrix.shards, by_rank, strict=True):
                mine = local(shard)
                mine.mul_(1 - group["lr"] * group["weight_decay"])
                mine.add_(directions[i], alpha=-rate)

    def _update_others(self, group: dict[str, Any]) -> None:
        trained = [p for p in group["params"] if p.grad is not None]
        if not trained:
            return
        states = [self.state[p] for p in trained]
        adamw(
            trained,
            [p.grad for p in trained if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=self._adamw.get("foreach"),
            fused=self._adamw.get("fused"),
            amsgrad=False,
            beta1=group["beta1"],
            beta2=group["beta2"],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
