"""The optimizers that exchange something of their own between replicas, as the settings say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

import comm_compress as cc
from fsdp_lab.models.matrices import matrices_of_blocks
from fsdp_lab.settings.groups import OptimConfig

MOMENTUM = 0.95
"""That of Muon and EF21-Muon, where no setting says another."""
DEMO_DECAY = 0.999
"""What DeMo's momenta keep, where no setting says another."""
DION_LEARNING_RATE, DION_MOMENTUM, DION_RANK = 0.02, 0.95, 0.25
"""Dion's rate of matrices, its momentum and its rank as a share of the shorter side, where no settings say others."""

VARIANCE_SCALER, LOCAL_SCALER, LOCAL_STEPS = 16, 32678, 16
"""0/1 Adam's intervals, where no settings say others."""

Groups = list[dict[str, Any]]


def decayed_or_not(parameters: Iterable[nn.Parameter], config: OptimConfig) -> Groups:
    """Those of the parameters that are trained, in two groups: matrices, which decay, and vectors, which do not."""
    trained = [p for p in parameters if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def between_replicas(
    model: nn.Module,
    config: OptimConfig,
    replicas: cc.optim.Replicas,
    total_steps: int,
    method: str,
    back: str = "none",
    until_freeze: str = "moves",
) -> Optimizer:
    """The optimizer of all parameters that ``replicas`` exchange something for: by ``method``, and ``back``.

    ``until_freeze``: what 0/1 Adam compresses until its variance is frozen, "moves" or "gradients"."""
    assert config.learning_rate is not None, "resolved"
    groups, rate = decayed_or_not(model.parameters(), config), config.learning_rate
    if config.optimizer == "dion":
        return _dion(model, replicas, groups, config)
    if config.optimizer == "demo":
        decay = DEMO_DECAY if config.demo_decay is None else config.demo_decay
        return cc.optim.DeMo(replicas, groups, lr=rate, decay=decay, method=method)
    if config.optimizer == "ef21_muon":
        matrices = [name for held in matrices_of_blocks(model).values() for name in held]
        momentum = MOMENTUM if config.muon_momentum is None else config.muon_momentum
        return cc.optim.EF21Muon(replicas, matrices, groups, lr=rate, momentum=momentum, method=method, back=back)
    assert config.warmup_steps is not None, "resolved"
    freeze, betas = config.adam_freeze_after or max(config.warmup_steps, 1), (config.adam_beta1, config.adam_beta2)
    if config.optimizer == "onebit_adam":
        return cc.optim.OneBitAdam(replicas, groups, lr=rate, freeze_after=freeze, betas=betas, method=method)
    return cc.optim.ZeroOneAdam(
        replicas,
        groups,
        lr=rate,
        freeze_after=freeze,
        variance_scaler=config.adam_variance_scaler or VARIANCE_SCALER,
        local_scaler=config.adam_local_scaler or LOCAL_SCALER,
        max_local_steps=config.adam_local_steps or LOCAL_STEPS,
        ends_at=total_steps,
        betas=betas,
        method=method,
        until_freeze="gradients" if until_freeze == "gradients" else "moves",
    )


def _dion(model: nn.Module, replicas: cc.optim.Replicas, groups: Groups, config: OptimConfig) -> cc.optim.Dion:
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
