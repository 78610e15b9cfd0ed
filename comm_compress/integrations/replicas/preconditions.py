"""What must be true before replicas begin: they are replicas, and nobody else keeps them equal already."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from comm_compress.drive import stock
from comm_compress.integrations.replicas.fragments import local


def group_of(group: dist.ProcessGroup | DeviceMesh | None) -> dist.ProcessGroup:
    """Return the replicas' group. ValueError for a mesh of several dimensions, and on ranks outside of it."""
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f'group: a mesh of {group.ndim} dimensions; give the replicas\' alone, as in mesh["replica"]'
            )
        group = group.get_group()
    group = group or dist.group.WORLD
    if group is None or dist.get_rank(group) < 0:
        raise ValueError("group: this process is not a rank of it; call torch.distributed.init_process_group first")
    return group


def require_no_reduction(model: object, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup) -> None:
    """ValueError when gradients are reduced over ``group`` at every step anyway, so that nothing is left to do."""
    ranks = set(dist.get_process_group_ranks(group))
    if len(ranks) == 1:
        return
    if isinstance(model, DistributedDataParallel):
        within = set(dist.get_process_group_ranks(model.process_group))
        if len(within & ranks) > 1:
            raise ValueError(
                "replicas: DistributedDataParallel reduces gradients among these ranks at every step; give it a "
                "process_group of the ranks of one replica, or attach to the module that it wraps"
            )
    for name, p in parameters.items():
        if not isinstance(p, DTensor):
            continue
        for i, placement in enumerate(p.placements):
            if placement.is_replicate() and set(dist.get_process_group_ranks(p.device_mesh.get_group(i))) == ranks:
                raise ValueError(
                    f"replicas: {name} is sharded over a 2-D mesh whose replicas reduce gradients at every step "
                    '(HSDP); call fully_shard with mesh["shard"] alone, and attach to mesh["replica"]'
                )


def require_equal(parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup) -> None:
    """ValueError, on every rank, when a parameter differs between ranks of ``group``.

    Compares sums of bit patterns, 8 bytes a parameter and rank, by torch's own all-gather; no ledger counts them.
    """
    mine = torch.stack([_bits(local(p)) for p in parameters.values()]).unsqueeze(0)
    everyone = stock.all_gather(mine, 0, None, group)
    differ = (everyone != everyone[:1]).any(0).tolist()
    if names := [name for name, differs in zip(parameters, differ, strict=True) if differs]:
        raise ValueError(
            f"replicas must begin equal, and differ in {', '.join(names[:5])}"
            f"{' and others' if len(names) > 5 else ''}: seed them alike, load the same weights, or broadcast them; of "
            "an FSDP2 model the group's ranks must hold the same shard (the mesh dimension that is not sharded over)"
        )


def _bits(values: Tensor) -> Tensor:
    """Return the sum of the elements' bit patterns, int64."""
    integers = torch.int32 if values.itemsize == 4 else torch.int16
    return values.contiguous().view(integers).sum(dtype=torch.int64)
