"""Optimizers that communicate on real ranks: the weights, states and bytes of virtual ones; FSDP2 inside a replica."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import comm_compress as cc
from tests.comm_compress.integrations.optim.replicated.training import (
    FRAGMENTS,
    LOCAL_STEPS,
    OPTIMIZERS,
    STEPS,
    Virtual,
    digest,
    gradients,
    model,
    real,
)
from tests.distributed import run_ranks

EVERY = {**OPTIMIZERS, **LOCAL_STEPS}


def _all() -> dict[str, Any]:
    torch.set_num_threads(1)
    return {name: real(make, FRAGMENTS) for name, make in EVERY.items()} | {"refused": _refusals()}


def _refusals() -> list[str]:
    messages = []
    other = model()
    with torch.no_grad():
        other.get_parameter("wide")[1, 1] += dist.get_rank()
    for wrong in (other, nn.parallel.DistributedDataParallel(model())):
        try:
            cc.optim.between(wrong)
            messages.append("")
        except ValueError as error:
            messages.append(str(error))
    return messages


@pytest.mark.parametrize("world", [1, 3])
def test_real_replicas_are_virtual_ones(world: int) -> None:
    torch.set_num_threads(1)
    by_rank = run_ranks(world, _all)
    for name, make in EVERY.items():
        virtual = Virtual(world, make, FRAGMENTS)
        for number in range(STEPS):
            virtual.step(number)
        for rank, seen in enumerate(by_rank):
            assert seen[name]["weights"] == by_rank[0][name]["weights"], "replicas are equal, bit for bit"
            assert seen[name]["sent"] == virtual.seen(rank)["sent"]
            if name != "dion" or world == 1:  # above two the network adds up its floats in an order of its own
                assert seen[name] == virtual.seen(rank), f"{name}: rank {rank} of {world}"
    for seen in by_rank:
        differs, reduces = seen["refused"]
        assert ("differ in wide" in differs, "reduces gradients among" in reduces) == (world > 1, world > 1)


SHARDED = ("demo", "onebit_adam")


def _sharded() -> dict[str, Any]:
    """Two replicas of two shards."""
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    found: dict[str, Any] = {}
    for name in SHARDED:
        made = nn.Module()
        for key, p in model().named_parameters():
            made.register_parameter(key, nn.Parameter(p.detach().view(-1)) if p.dim() == 0 else p)
        fully_shard(made, mesh=mesh["shard"])
        replicas = cc.optim.between(made, mesh["replica"])
        optimizer = OPTIMIZERS[name](replicas)
        for step in range(STEPS):
            for key, gradient in gradients(mesh.get_local_rank("replica"), step).items():
                p = made.get_parameter(key)
                assert isinstance(p, DTensor)
                whole = gradient.view(-1) if gradient.dim() == 0 else gradient
                p.grad = distribute_tensor(whole, p.device_mesh, p.placements, src_data_rank=None)
            optimizer.step()
        whole = {n: p.full_tensor().detach() for n, p in made.named_parameters() if isinstance(p, DTensor)}
        found[name] = digest(whole)
    return found


def test_replicas_that_fsdp2_shards_stay_equal_bit_for_bit() -> None:
    start = digest({n: p.detach() for n, p in model().named_parameters()})
    by_rank = run_ranks(4, _sharded)
    for name in SHARDED:
        (trained,) = {seen[name] for seen in by_rank}
        assert trained != start, name
