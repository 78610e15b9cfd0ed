"""The optimizer, its learning-rate schedule, and one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import comm_compress as cc
from fsdp_lab.models.norms import world_norm
from fsdp_lab.settings.groups import OptimConfig

_ADAMW = {"loop": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
MUON_MOMENTUM = 0.95
"""That of the matrices, where no setting says another."""


def build_optimizer(
    model: nn.Module,
    config: OptimConfig,
    total_steps: int,
    adamw: str = "fused",
    gathers: cc.optim.Gathers | None = None,
) -> tuple[Optimizer, LambdaLR]:
    """The optimizer (weight decay on matrices only), and linear warm-up followed by a cosine to the final rate.

    ``adamw``: torch's implementation of AdamW's update, "fused", "foreach" or "loop". ``gathers``: the matrices that
    are Muon's, and who brings them together; None: AdamW has all.
    """
    warmup_steps = config.warmup_steps
    assert warmup_steps is not None, "resolved"
    optimizer = _optimizer(model, config, _ADAMW[adamw], gathers)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        floor = config.min_learning_rate_ratio
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    return optimizer, LambdaLR(optimizer, factor)


def _optimizer(
    model: nn.Module, config: OptimConfig, adamw: dict[str, bool], gathers: cc.optim.Gathers | None
) -> Optimizer:
    """AdamW of all parameters, or Muon of some matrices and AdamW of the others."""
    assert config.learning_rate is not None, "resolved"
    units = () if gathers is None else gathers.units
    orthogonalised = {id(shard) for unit in units for matrix in unit.matrices for shard in matrix.shards}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in orthogonalised]
    groups = [
        {"params": [p for p in others if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0},
    ]
    lr, betas = config.learning_rate, (config.adam_beta1, config.adam_beta2)
    if gathers is None:
        return AdamW(groups, lr=lr, betas=betas, **adamw)
    momentum = MUON_MOMENTUM if config.muon_momentum is None else config.muon_momentum
    return cc.optim.Muon(
        gathers, groups, lr=lr, weight_decay=config.weight_decay, momentum=momentum, betas=betas, adamw=adamw
    )


class StepOutcome(NamedTuple):
    """``grad_norm`` is world-wide (of a replica that trains by itself: its own) and before clipping, the same on all of
    those ranks; ``taken``: was the update applied? The same on all ranks.

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
) -> StepOutcome:
    """Clip to the world-wide norm and update, unless a gradient anywhere is not finite: then only forget it.

    ``grad_norm`` is over all ranks' shards, so all ranks decide alike. ``scaler``: takes its scale off the gradients
    first, and chooses the next step's. The decision is not left to it: it would not see a norm that overflows.
    """
    scale = None
    if scaler is not None and scaler.is_enabled():
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = grad_norm(gradients)
    finite = math.isfinite(norm)
    clipped = finite and 0 < max_grad_norm < float(norm)
    learning_rate = schedule.get_last_lr()[0]
    if finite:
        if clipped:
            torch._foreach_mul_([_local(g) for g in gradients], max_grad_norm / (float(norm) + 1e-6))
        optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    if scaler is not None:
        scaler.update()
    return StepOutcome(float(norm), float(learning_rate), finite, clipped, scale)


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
