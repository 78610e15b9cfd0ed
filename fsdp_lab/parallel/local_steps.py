"""Replicas that reduce no gradients: what is theirs alone, and what is not.

They train by themselves and synchronise now and then (--outer), or exchange what their optimizer says at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import comm_compress as cc
from fsdp_lab.models.outer import how_replicas_synchronise
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import CommConfig


def reduces_no_gradients(config: TrainConfig) -> bool:
    """Do replicas keep their gradients to themselves: for local steps, or as the optimizer exchanges something else?"""
    return config.comm.outer != "none" or config.optim.is_between_replicas


def attach_outer(module: nn.Module, replicas: DeviceMesh, config: CommConfig, seed: int) -> cc.outer.Handle:
    """What synchronises ``module``, this rank's part of its replica, with its like over the 1-D mesh ``replicas``.

    Collective. ValueError for methods and fragments that cannot do it.
    """
    return cc.outer.attach(module, replicas, **how_replicas_synchronise(module, config, seed))


def norm_of_own(own: Tensor, replica: int, replicas: int, ranks: Ranks) -> Tensor:
    """The gradient norm of this rank's ``replica``; NaN on all ranks when that of one of ``replicas`` is not finite.

    ``own``: this rank's part of the squared norm, float64. So a step is skipped by all or by none, as the run counts
    and saves the steps of all ranks alike. Collective: one all-reduce of a number for each replica.
    """
    squares = torch.zeros(replicas, dtype=own.dtype, device=own.device)
    squares[replica] = own
    norms = ranks.sum(squares).sqrt().float()
    return norms[replica] if bool(torch.isfinite(norms).all()) else torch.full_like(norms[replica], torch.nan)
