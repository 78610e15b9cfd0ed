"""The optimizer, its learning-rate schedule, and one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import comm_compress as cc
from fsdp_lab.models.matrices import matrices_of_blocks
from fsdp_lab.models.norms import world_norm
from fsdp_lab.settings.groups import OptimConfig

_ADAMW = {"loop": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
MUON_MOMENTUM = 0.95
"""That of the matrices, where no setting says another."""
DEMO_DECAY = 0.999
"""What DeMo's momenta keep, where no setting says another."""
DION_LEARNING_RATE, DION_MOMENTUM, DION_RANK = 0.02, 0.95, 0.25
"""Dion's rate of matrices, its momentum and its rank as a share of the shorter side, where no settings say others."""


def build_optimizer(
    model: nn.Module,
    config: OptimConfig,
    total_steps: int,
    adamw: str = "fused",
    exchanges: cc.optim.Gathers | cc.optim.Replicas | None = None,
    method: str = "none",
) -> tuple[Optimizer, LambdaLR]:
    """The optimizer (weight decay on matrices only), and linear warm-up followed by a cosine to the final rate.

    ``adamw``: torch's implementation of AdamW's update, "fused", "foreach" or "loop". ``exchanges``: the matrices that
    are Muon's, and who brings them together; or the replicas of an optimizer that exchanges something by ``method`` in
    place of gradients; None: AdamW has all.
    """
    warmup_steps = config.warmup_steps
    assert warmup_steps is not None, "resolved"
    optimizer: Optimizer
    if config.is_between_replicas:
        optimizer = _between_replicas(model, config, cast(cc.optim.Replicas, exchanges), method)
    else:
        optimizer = _optimizer(model, config, _ADAMW[adamw], cast(cc.optim.Gathers | None, exchanges))

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


def _between_replicas(
    model: nn.Module, config: OptimConfig, replicas: cc.optim.Replicas, method: str
) -> cc.optim.DeMo | cc.optim.OneBitAdam | cc.optim.Dion:
    """The optimizer of all parameters that ``replicas`` exchange something for."""
    assert config.learning_rate is not None, "resolved"
    assert config.warmup_steps is not None, "resolved"
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    if config.optimizer == "dion":
        return _dion(model, replicas, groups, config)
    if config.optimizer == "demo":
        decay = DEMO_DECAY if config.demo_decay is None else config.demo_decay
        return cc.optim.DeMo(replicas, groups, lr=config.learning_rate, decay=decay, method=method)
    return cc.optim.OneBitAdam(
        replicas,
        groups,
        lr=config.learning_rate,
        freeze_after=config.adam_freeze_after or max(config.warmup_steps, 1),
        betas=(config.adam_beta1, config.adam_beta2),
        method=method,
    )


def _dion(
    model: nn.Module, replicas: cc.optim.Replicas, groups: list[dict[str, Any]], config: OptimConfig
) -> cc.optim.Dion:
    """Dion of the matrices of the blocks, AdamW of the rest, each with its rate."""
    assert config.learning_rate is not None, "resolved"
    matrices = {name: p for held in matrices_of_blocks(model).values() for name, p in held.items()}
    of_matrices = {id(p) for p in matrices.values()}
    rate = DION_LEARNING_RATE if config.dion_learning_rate is None else config.dion_learning_rate
    first = [p for p in groups[0]["params"] if id(p) in of_matrices]
    rest = [p for p in groups[0]["params"] if id(p) not in of_matrices]
    return cc.optim.Dion(
        replicas,
        list(matrices),
        [{**groups[0], "params": first, "lr": rate}, {**groups[0], "params": rest}, groups[1]],
        lr=config.learning_rate,
        momentum=DION_MOMENTUM if config.dion_momentum is None else config.dion_momentum,
        rank_fraction=DION_RANK if config.dion_rank is None else config.dion_rank,
        betas=(config.adam_beta1, config.adam_beta2),
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
    taken = finite and getattr(optimizer, "finite", True)  # what replicas exchange may overflow by itself
    return StepOutcome(float(norm), float(learning_rate), taken, clipped, scale)


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
