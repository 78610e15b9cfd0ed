"""The optimizer, its learning-rate schedule, and one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import comm_compress as cc
from fsdp_lab.models.shards.norms import world_norm
from fsdp_lab.settings.groups import OptimConfig
from fsdp_lab.training.replica_optimizers import MOMENTUM, Groups, between_replicas, decayed_or_not

_ADAMW = {"loop": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def build_optimizer(
    model: nn.Module,
    config: OptimConfig,
    total_steps: int,
    adamw: str = "fused",
    exchanges: cc.optim.Gathers | cc.optim.Replicas | None = None,
    method: str = "none",
    back: str = "none",
    until_freeze: str = "moves",
    own_rates: Mapping[nn.Parameter, float] | None = None,
) -> tuple[Optimizer, LambdaLR]:
    """The optimizer (weight decay on matrices only), and linear warm-up followed by a cosine to the final rate.

    ``adamw``: torch's implementation of AdamW's update, "fused", "foreach" or "loop". ``exchanges``: the matrices that
    are Muon's, and who brings them together; or the replicas of an optimizer that exchanges something by ``method`` in
    place of gradients, and brings something ``back``; None: AdamW has all.
    ``until_freeze``: what 0/1 Adam compresses until its variance is frozen. ``own_rates``: of parameters that are
    updated at a rate of their own, in multiples of the others'; all of Muon's matrices have one.
    """
    warmup_steps = config.warmup_steps
    assert warmup_steps is not None, "resolved"
    optimizer: Optimizer
    if config.is_between_replicas:
        replicas = cast(cc.optim.Replicas, exchanges)
        optimizer = between_replicas(model, config, replicas, total_steps, method, back, until_freeze)
    else:
        optimizer = _optimizer(model, config, _ADAMW[adamw], cast(cc.optim.Gathers | None, exchanges), own_rates or {})

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        floor = config.min_learning_rate_ratio
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    return optimizer, LambdaLR(optimizer, factor)


def _optimizer(
    model: nn.Module,
    config: OptimConfig,
    adamw: dict[str, bool],
    gathers: cc.optim.Gathers | None,
    own_rates: Mapping[nn.Parameter, float],
) -> Optimizer:
    """AdamW of all parameters, or Muon of some matrices and AdamW of the others."""
    assert config.learning_rate is not None, "resolved"
    units = () if gathers is None else gathers.units
    orthogonalised = {id(shard) for unit in units for matrix in unit.matrices for shard in matrix.shards}
    groups = _by_rate(
        decayed_or_not((p for p in model.parameters() if id(p) not in orthogonalised), config), config, own_rates
    )
    lr, betas = config.learning_rate, (config.adam_beta1, config.adam_beta2)
    if gathers is None:
        optimizer = AdamW(groups, lr=lr, betas=betas, **adamw)
        return _with_state(optimizer, on_cpu=not adamw.get("fused", False)) if own_rates else optimizer
    momentum = MOMENTUM if config.muon_momentum is None else config.muon_momentum
    times = max((own_rates.get(s, 1.0) for u in units for m in u.matrices for s in m.shards), default=1.0)
    return cc.optim.Muon(
        gathers, groups, lr=lr * times, weight_decay=config.weight_decay, momentum=momentum, betas=betas, adamw=adamw
    )


def _with_state(optimizer: AdamW, on_cpu: bool) -> AdamW:
    """``optimizer`` with the state that AdamW else makes in a parameter's first step: a checkpoint needs it of all.

    ``on_cpu``: where AdamW counts steps.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            steps = torch.zeros((), dtype=torch.float32, device="cpu" if on_cpu else p.device)
            optimizer.state[p] = {"step": steps, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return optimizer


def _by_rate(groups: Groups, config: OptimConfig, own_rates: Mapping[nn.Parameter, float]) -> Groups:
    """``groups``, each divided by the rates of its parameters."""
    assert config.learning_rate is not None, "resolved"
    divided: Groups = []
    for group in groups:
        rates = {own_rates.get(p, 1.0) for p in group["params"]}
        for times in sorted(rates):
            own = {} if times == 1.0 else {"lr": config.learning_rate * times}
            divided.append({**group, "params": [p for p in group["params"] if own_rates.get(p, 1.0) == times], **own})
    return divided


class StepOutcome(NamedTuple):
    """``grad_norm`` is world-wide (of a replica that trains by itself: its own; of several that one process plays: the
    first one's) and before clipping, the same on all of those ranks; ``taken``: was the update applied? The same on all
    ranks.

    ``clipped``: was the norm above the limit? ``loss_scale``: what the loss had been multiplied by; None: no scaler.
    """

    grad_norm: float
    learning_rate: float
    taken: bool
    clipped: bool
    loss_scale: float | None = None


def take_step(
    model: nn.Module,
    optimizer: Optimizer,
    schedule: LambdaLR,
    max_grad_norm: float,
    grad_norm: Callable[[list[Tensor]], Tensor] = world_norm,
    scaler: GradScaler | None = None,
    gradients: Sequence[list[Tensor]] | None = None,
    before_update: Callable[[], None] = lambda: None,
) -> StepOutcome:
    """Clip to the world-wide norm and update, unless a gradient anywhere is not finite: then only forget it.

    ``grad_norm`` is over all ranks' shards, so all ranks decide alike. ``scaler``: takes its scale off the gradients
    first, and chooses the next step's. The decision is not left to it: it would not see a norm that overflows.
    ``gradients``: of each replica that this process plays, which clips by its own norm; None: those of ``model``.
    ``before_update``: called between clipping and the update, not where the step is skipped.
    """
    scale = None
    if scaler is not None and scaler.is_enabled():
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
    by_replica = [[p.grad for p in model.parameters() if p.grad is not None]] if gradients is None else gradients
    norms = [float(grad_norm(mine)) for mine in by_replica]
    finite = all(map(math.isfinite, norms))
    clips = [finite and 0 < max_grad_norm < norm for norm in norms]
    learning_rate = schedule.get_last_lr()[0]
    if finite:
        for mine, norm, clipped in zip(by_replica, norms, clips, strict=True):
            if clipped:
                torch._foreach_mul_([_local(g) for g in mine], max_grad_norm / (norm + 1e-6))
        before_update()
        optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    if scaler is not None:
        scaler.update()
    taken = finite and getattr(optimizer, "finite", True)  # what replicas exchange may overflow by itself
    seen = norms[0] if finite else next(norm for norm in norms if not math.isfinite(norm))
    return StepOutcome(seen, float(learning_rate), taken, clips[0], scale)


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
