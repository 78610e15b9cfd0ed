"""0/1 Adam: 1-bit Adam whose variance is updated ever more rarely, and whose replicas make local steps.

Lu, Li, Zhang, De Sa and He, "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam", ICLR 2023,
arXiv 2202.06009.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from comm_compress.core.rounds import Request
from comm_compress.core.segments import Segment, unflatten
from comm_compress.core.state import State
from comm_compress.integrations import allreduce
from comm_compress.integrations.optim.replicated.exchange import (
    OwnWeights,
    Replicas,
    UnderWay,
    layout,
    next_version,
    rows_of,
)
from comm_compress.integrations.optim.replicated.optimizer import Params, ReplicaOptimizer
from comm_compress.integrations.optim.replicated.parts.adam import Betas, check_betas, move, take_square_in
from comm_compress.integrations.optim.replicated.parts.intervals import (
    is_synchronised,
    is_variance_step,
    variance_steps,
)
from comm_compress.integrations.optim.replicated.parts.two_way import two_way_mean
from comm_compress.integrations.optim.replicated.parts.whole import check_whole
from comm_compress.integrations.replicas.fragments import Fragment, local
from comm_compress.integrations.replicas.messages import one_message
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.registry import AnyMethod, chosen

Compressed = Literal["moves", "gradients"]
"""What replicas exchange in few bits until the variance stays as it is: how far each has gone, or its gradient."""
METHOD = "signsgd"
"""Signs with a mean magnitude, whose error is fed back."""


class ZeroOneAdam(ReplicaOptimizer):
    """Adam with rare updates of the variance, one-bit messages and local steps (arXiv 2202.06009).

    Replica i, with its own gradient g_i at its own weights x_i, and the rate lr of the step:

        m_i = beta1 m_i + (1 - beta1) g_i
        u_i = u_i + lr m_i                                   what it has gone since replicas last synchronised
        x_i = x - u_i / (sqrt(v) + eps)                      x: what all agreed on then

    and, in a step that synchronises:

        u   = the mean of all u_i, compressed on both ways, with each way's error fed back (`two_way`)
        x   = x - u / (sqrt(v) + eps),   m_i = u / (sum of lr since the last one),   u_i = 0

    In a step that updates the variance the mean g of all gradients is exchanged instead, exactly, and all is Adam's:
    v = beta2 v + (1 - beta2) g^2, m = beta1 m + (1 - beta1) g, x = x - lr m / (sqrt(v) + eps).

    ``until_freeze``: what is compressed in the other steps until ``freeze_after``, of which there are two readings:

    - "moves": u, as above and as the paper has it.
    - "gradients": the mean g of all gradients, compressed on both ways with each way's error fed back, enters the
      momentum, which stays that of all, and the step is Adam's with v as it is. So the public code has it (DeepSpeed's
      ``ZeroOneAdam``). What gradients have left out is forgotten when the variance is frozen, because from then on u is
      sent, which has another scale.

    The paper's policies (`intervals`): until ``freeze_after`` steps are made, all synchronise, and the variance is
    updated at intervals that double after every ``variance_scaler`` updates. Then the variance stays as it is, and
    replicas synchronise at intervals that double every ``local_scaler`` steps, up to ``max_local_steps``; and in the
    step ``ends_at``, if there is one, so that a training ends with what all have learnt. Defaults are those of the
    public code; ``freeze_after`` is the end of the rate's warm-up there.

    Between two synchronisations replicas have weights of their own, inside of ``replicas.own_weights()``, where they
    compute their gradients; outside, and in checkpoints, are those that they last agreed on. A local step sends
    nothing: where a replica's gradient is not finite, it alone leaves its momentum as it was.

    ``method``: any method that sends one message, its own feedback off; default: "signsgd". x, v and sums of rates are
    the same on all replicas, bit for bit, and in the optimizer's ``state_dict()``; each replica's m, u and errors are
    in the handle's, four times the parameters in all.

    What the paper and its public code leave open, or say differently:

    - A step that updates the variance sends its gradients exactly and nothing else, as in the public code; the paper's
      algorithm sends both, the exact gradients for the variance and the compressed u for the rest.
    - The public code's first step only sets up its memory and moves nothing; here it is a step as any other. And there
      the steps that update the variance are those that the interval divides; here they are counted from the last one.
    - The variance is updated before the step that it divides, as in the public code; the paper's v of the first step
      would be 0.
    - ``bias_correction``: Adam's own, of v by the number of its updates, of the rate by the step; where every step
      updates the variance it is exactly `torch.optim.AdamW`. False: none, as in the public code.
    - An element whose variance is still 0 is not moved (see `OneBitAdam`).
    - ``weight_decay`` is decoupled, of x when it moves, by the sum of rates since then; in the public code it is a part
      of u after the freeze, so it enters the messages and the momentum.
    - Scales are those of 1,024 neighbours (see `OneBitAdam`).

    ``lr``, ``betas``, ``eps``, ``weight_decay``; groups of ``params`` may have their own rate and decay. Raises
    ValueError for methods that do not send one message, and for replicas that are sharded and would make local steps.
    """

    divided = True

    def __init__(
        self,
        replicas: Replicas,
        params: Params | None = None,
        *,
        lr: float,
        freeze_after: int,
        variance_scaler: int = 16,
        local_scaler: int = 32678,
        max_local_steps: int = 16,
        ends_at: int | None = None,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        method: AnyMethod = METHOD,
        until_freeze: Compressed = "moves",
    ) -> None:
        counts = {"freeze_after": freeze_after, "variance_scaler": variance_scaler, "local_scaler": local_scaler}
        for name, count in {**counts, "max_local_steps": max_local_steps}.items():
            if count < 1:
                raise ValueError(f"{name} = {count}: must be 1 or more")
        check_betas(betas)
        if until_freeze not in get_args(Compressed):
            raise ValueError(f"until_freeze = {until_freeze!r}: must be one of {', '.join(get_args(Compressed))}")
        if max_local_steps > 1:
            named = {name: p for fragment in replicas.fragments for name, p in fragment.parameters.items()}
            check_whole(named, "0/1 Adam's local steps need whole replicas (max_local_steps 1: there are none)")
        self._codec = one_message(chosen("method", method))
        allreduce.check_ranks(self._codec, replicas.world)
        self.freeze_after, self.variance_scaler, self.ends_at = freeze_after, variance_scaler, ends_at
        self.local_scaler, self.max_local_steps, self.until_freeze = local_scaler, max_local_steps, until_freeze
        self.betas, self.eps, self.bias_correction = betas, eps, bias_correction
        super().__init__(replicas, params, {"lr": lr, "weight_decay": weight_decay})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
                self.state[p]["since"] = torch.zeros(2)  # sums of the corrected rate, and of the rate itself

    # ---- which step does what -------------------------------------------------------------------------------

    def updates_variance(self, step: int) -> bool:
        """Is the variance updated in ``step`` (from 1)?"""
        return step <= self.freeze_after and is_variance_step(step, self.variance_scaler)

    def compresses_gradients(self, step: int) -> bool:
        """Are gradients exchanged in few bits in ``step`` (from 1)?"""
        return self.until_freeze == "gradients" and step <= self.freeze_after and not self.updates_variance(step)

    def synchronises(self, step: int) -> bool:
        """Do replicas exchange anything in ``step`` (from 1)?"""
        after, scaler = self.freeze_after, self.local_scaler
        return step == self.ends_at or is_synchronised(step, after, scaler, self.max_local_steps)

    def _begin(self, fragment: Fragment, gradients: list[dict[str, Tensor]]) -> UnderWay:
        step = 1 + max(int(self.state[p]["step"]) for p in fragment.parameters.values())
        if self.updates_variance(step):
            return self._replicas.begin(fragment, gradients, self._exactly)
        if self.compresses_gradients(step):
            return self._replicas.begin(fragment, gradients, partial(self._gradients_by_method, fragment))
        rounds = self._by_method if self.synchronises(step) else self._by_itself
        return self._replicas.begin(fragment, gradients, partial(rounds, fragment, step))

    # ---- the rounds of one replica, with its gradients [W, n] -----------------------------------------------

    def _exactly(self, rows: Tensor, state: State) -> Generator[Request, Any, list[Tensor]]:
        """The mean gradient and the momentum, which are all replicas'."""
        mean = yield from allreduce.all_reduce(rows, UNCOMPRESSED, UNCOMPRESSED, state, rows.shape[0])
        momentum = next_version(state, "momentum", rows).lerp_(mean, 1 - self.betas[0])
        state.propose("momentum", momentum)
        return [mean, momentum]

    def _gradients_by_method(
        self, fragment: Fragment, rows: Tensor, state: State
    ) -> Generator[Request, Any, list[Tensor]]:
        """The mean gradient in few bits and the momentum, which are all replicas'."""
        mean = yield from two_way_mean(rows, self._codec, state)
        entering = mean.masked_fill(self._without_variance(fragment, rows), 0)
        momentum = next_version(state, "momentum", rows).lerp_(entering, 1 - self.betas[0])
        state.propose("momentum", momentum)
        return [mean, momentum]

    def _by_method(
        self, fragment: Fragment, step: int, rows: Tensor, state: State
    ) -> Generator[Request, Any, list[Tensor]]:
        """What the mean of all replicas has gone since they last synchronised."""
        momentum, gone = self._gone(fragment, step, rows, state)
        of_gradients = self.until_freeze == "gradients" and step == self.freeze_after + 1
        mean = yield from two_way_mean(gone, self._codec, state, decay=0.0 if of_gradients else 1.0)
        momentum.copy_(mean).masked_fill_(self._without_variance(fragment, rows), 0)
        for segment, p in self._segments(fragment, rows):
            since = float(self.state[p]["since"][0]) + self._rate(p, step)
            momentum[:, segment.start : segment.stop] /= since if since else 1.0
        state.propose("momentum", momentum)
        if state.get("gone") is not None:
            state.propose("gone", gone.zero_())
        return [mean]

    def _by_itself(
        self, fragment: Fragment, step: int, rows: Tensor, state: State
    ) -> Generator[Request, Any, list[Tensor]]:
        """Nothing that others would hear of."""
        momentum, gone = self._gone(fragment, step, rows, state)
        state.propose("momentum", momentum)
        state.propose("gone", gone)
        yield from ()
        return []

    def _without_variance(self, fragment: Fragment, rows: Tensor) -> Tensor:
        """Which elements of ``rows`` have a variance of 0: bool ``[W, n]``."""
        variance = {name: local(self.state[p]["exp_avg_sq"]) for name, p in fragment.parameters.items()}
        return rows_of(variance, rows.shape[0]) == 0

    def _gone(self, fragment: Fragment, step: int, rows: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """This replica's next momentum, and how far it has gone with it since the last synchronisation (u)."""
        momentum = next_version(state, "momentum", rows).lerp_(rows, 1 - self.betas[0])
        gone = next_version(state, "gone", rows)
        for segment, p in self._segments(fragment, rows):
            columns = slice(segment.start, segment.stop)
            gone[:, columns].add_(momentum[:, columns], alpha=self._rate(p, step))
        return momentum, gone

    # ---- what all replicas do alike -------------------------------------------------------------------------

    def _apply(self, fragment: Fragment, made: list[Tensor]) -> None:
        segments = self._segments(fragment, made[0]) if made else []
        exact = self.updates_variance(max(int(self.state[p]["step"]) for p in fragment.parameters.values()))
        for p in fragment.parameters.values():
            rates = self._rate(p, int(self.state[p]["step"])), self._settings(p)["lr"]  # the step is counted already
            self.state[p]["since"] += self.state[p]["since"].new_tensor(rates)
        by_result = [unflatten(rows, [segment for segment, _ in segments]) for rows in made]
        for (_, p), *parts in zip(segments, *by_result, strict=True):
            self._move(p, exact, *(part.view_as(local(p)) for part in parts))

    def _move(self, p: nn.Parameter, exact: bool, mean: Tensor, momentum: Tensor | None = None) -> None:
        """Move what all agree on: by the momentum where ``mean`` is of gradients (``exact``: it enters the variance,
        too), else by ``mean`` itself."""
        state, group, mine = self.state[p], self._settings(p), local(p)
        variance, step = local(state["exp_avg_sq"]), int(state["step"])
        if group["weight_decay"]:
            mine.mul_(1 - float(state["since"][1]) * group["weight_decay"])
        if momentum is None:
            moved = mean.masked_fill(variance == 0, 0)
            move(mine, moved, variance, 1.0, self.eps, 1.0, self._of_variance(step))
        else:
            if exact:
                take_square_in(mean, variance, self.betas)
            move(mine, momentum, variance, group["lr"], self.eps, self._of_momentum(step), self._of_variance(step))
        state["since"].zero_()

    def _own_weights(self) -> OwnWeights | None:
        return self._where_it_has_gone if self.max_local_steps > 1 else None

    @contextmanager
    def _where_it_has_gone(self, rank: int) -> Iterator[None]:
        """Inside, the weights are those of one replica after its local steps."""
        agreed: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            for fragment in self._replicas.fragments:
                for name, gone in self._replicas.remembered(fragment, "gone")[rank].items():
                    p = fragment.parameters[name]
                    mine, state = local(p), self.state[p]
                    agreed.append((mine, mine.clone()))
                    variance = local(state["exp_avg_sq"])
                    moved = gone.view_as(mine).masked_fill(variance == 0, 0)
                    move(mine, moved, variance, 1.0, self.eps, 1.0, self._of_variance(int(state["step"])))
        try:
            yield
        finally:
            for mine, before in agreed:
                mine.copy_(before)

    def _segments(self, fragment: Fragment, rows: Tensor) -> list[tuple[Segment, nn.Parameter]]:
        """Where each parameter lies in rows."""
        return list(zip(layout(fragment.local(), rows.shape[0]), fragment.parameters.values(), strict=True))

    def _rate(self, p: nn.Parameter, step: int) -> float:
        """The rate of a step, corrected for the momentum's bias."""
        return float(self._settings(p)["lr"]) / self._of_momentum(step)

    def _of_momentum(self, step: int) -> float:
        return 1.0 - self.betas[0] ** step if self.bias_correction else 1.0

    def _of_variance(self, step: int) -> float:
        """What the variance's bias is corrected by: it depends on how often it was updated."""
        updates = variance_steps(min(step, self.freeze_after), self.variance_scaler)
        return 1.0 - self.betas[1] ** updates if self.bias_correction else 1.0
