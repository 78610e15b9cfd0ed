"""Whole matrices in every replica: what optimizers need that decompose or orthogonalise them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn
from torch.distributed.tensor import DTensor


def check_whole_matrices(matrices: Collection[str], named: Mapping[str, nn.Parameter], whose: str) -> None:
    """ValueError for names of no matrix of ``named``, and for parameters that are sharded inside their replica.

    ``whose``: the optimizer's name.
    """
    check_whole(named, f"{whose} needs whole matrices")
    for name in matrices:
        if name not in named:
            raise ValueError(f"matrices: the replicas have no {name!r}")
        if named[name].dim() != 2:
            raise ValueError(f"matrices: {name} has the shape {tuple(named[name].shape)}; {whose} is for matrices")


def check_whole(named: Mapping[str, nn.Parameter], why: str) -> None:
    """ValueError for parameters that are sharded inside their replica; ``why``: what needs them whole."""
    for name, p in named.items():
        if isinstance(p, DTensor) and any(
            not placement.is_replicate() and p.device_mesh.size(i) > 1 for i, placement in enumerate(p.placements)
        ):
            raise ValueError(f"{name} is sharded inside its replica: {why}; shard nothing")
