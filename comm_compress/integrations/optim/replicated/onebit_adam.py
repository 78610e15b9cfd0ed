"""1-bit Adam: Adam first, then momentum in one bit behind a variance that stays as it was.

Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", ICML 2021, arXiv
2102.02888.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor, nn

from comm_compress.core.rounds import Request
from comm_compress.core.segments import unflatten
from comm_compress.core.state import State
from comm_compress.integrations import allreduce
from comm_compress.integrations.optim.replicated.exchange import Replicas, UnderWay, layout
from comm_compress.integrations.optim.replicated.optimizer import Params, ReplicaOptimizer
from comm_compress.integrations.optim.replicated.parts.adam import check_betas, move, take_in
from comm_compress.integrations.optim.replicated.parts.two_way import two_way_mean
from comm_compress.integrations.replicas.fragments import Fragment, local
from comm_compress.integrations.replicas.messages import one_message
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.registry import AnyMethod, chosen

METHOD = "signsgd"
"""Signs with a mean magnitude, whose error is fed back."""


class OneBitAdam(ReplicaOptimizer):
    """Adam for ``freeze_after`` steps; then its variance is frozen and momentum goes in one bit (arXiv 2102.02888).

    First, with the mean g of all replicas' gradients, exactly:

        m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2,   x = x - lr m / (sqrt(v) + eps)

    Then, with replica i's own gradient g_i, and v as it was:

        m_i = beta1 m + (1 - beta1) g_i
        m   = the mean of all m_i, compressed on both ways, with each way's error fed back (`two_way`)
        x   = x - lr m / (sqrt(v) + eps)

    The mean gradient of the first phase goes in float32 (`identity`). ``method``: any method that sends one message,
    its own feedback off; default: "signsgd". m and v are the same on all replicas, bit for bit, and in the optimizer's
    ``state_dict()``; the errors, as large as the parameters and a W-th of that, are in the handle's.

    What the paper and its public code leave open, or say differently:

    - Scales: the paper keeps a message's magnitude with one scale a tensor; here one belongs to 1,024 neighbours, their
      mean magnitude, which is what comes nearest to them.
    - ``bias_correction``: Adam's own, in the first phase exactly `torch.optim.AdamW`'s; the variance is frozen with the
      correction of that step. False: none, as in the public code.
    - When the variance is stable enough: the paper compares its norm with that of some time before. Here
      ``freeze_after`` says it.
    - An element whose variance is still 0, because no gradient came so far (a word that was not read), is not moved in
      the second phase: one bit has no zero, and it would be divided by eps. The public code asks its user for a mask.
    - ``weight_decay`` is decoupled, as the public code's is.

    ``lr``, ``betas``, ``eps``, ``weight_decay``; groups of ``params`` may have their own rate and decay.
    Raises ValueError for methods that do not send one message.
    """

    divided = True

    def __init__(
        self,
        replicas: Replicas,
        params: Params | None = None,
        *,
        lr: float,
        freeze_after: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        method: AnyMethod = METHOD,
    ) -> None:
        if freeze_after < 1:
            raise ValueError(f"freeze_after = {freeze_after}: must be 1 or more: without a variance there is no Adam")
        check_betas(betas)
        self._codec = one_message(chosen("method", method))
        allreduce.check_ranks(self._codec, replicas.world)
        self.freeze_after, self.betas, self.eps, self.bias_correction = freeze_after, betas, eps, bias_correction
        super().__init__(replicas, params, {"lr": lr, "weight_decay": weight_decay})
        for p in self._group_params():
            self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)

    def _group_params(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def is_frozen(self, fragment: Fragment) -> bool:
        """Does the step that comes next exchange momentum of ``fragment``, and not gradients?"""
        return max(int(self.state[p]["step"]) for p in fragment.parameters.values()) >= self.freeze_after

    def _begin(self, fragment: Fragment, gradients: list[dict[str, Tensor]]) -> UnderWay:
        if not self.is_frozen(fragment):
            return self._replicas.begin(fragment, gradients, self._mean_gradient)
        beta = self.betas[0]
        momenta = {name: local(self.state[p]["exp_avg"]) for name, p in fragment.parameters.items()}
        own = [{name: torch.lerp(momenta[name], g, 1 - beta) for name, g in mine.items()} for mine in gradients]
        return self._replicas.begin(fragment, own, self._mean_momentum)

    def _mean_gradient(self, rows: Tensor, state: State) -> Generator[Request, Any, Tensor]:
        return (yield from allreduce.all_reduce(rows, UNCOMPRESSED, UNCOMPRESSED, state, rows.shape[0]))

    def _mean_momentum(self, rows: Tensor, state: State) -> Generator[Request, Any, Tensor]:
        return (yield from two_way_mean(rows, self._codec, state))

    def _apply(self, fragment: Fragment, made: Tensor) -> None:
        parts = unflatten(made, layout(fragment.local(), made.shape[0]))
        for p, mean in zip(fragment.parameters.values(), parts, strict=True):
            state, mine = self.state[p], self._decay(p)
            mean, step = mean.view_as(mine), int(state["step"])  # of this step: it is counted already
            momentum, variance = local(state["exp_avg"]), local(state["exp_avg_sq"])
            if step <= self.freeze_after:
                take_in(mean, momentum, variance, self.betas)
            else:
                momentum.copy_(mean).masked_fill_(variance == 0, 0)
            move(mine, momentum, variance, self._settings(p)["lr"], self.eps, *self._corrections(step))

    def _corrections(self, step: int) -> tuple[float, float]:
        """What the bias of both moments is corrected by; that of a frozen variance is of the step that froze it."""
        if not self.bias_correction:
            return 1.0, 1.0
        return 1 - self.betas[0] ** step, 1 - self.betas[1] ** min(step, self.freeze_after)
