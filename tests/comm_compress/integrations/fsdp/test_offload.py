"""FSDP2's CPUOffloadPolicy: shards, gradients and the optimizer on the CPU, collectives where the mesh is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import comm_compress as cc
from tests.comm_compress.integrations.test_fsdp import Net, batch, full, loss_of, worst
from tests.distributed import run_ranks

MIXED = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
METHODS: list[dict[str, Any]] = [
    {"reduce_scatter": ("identity", {}), "all_gather": ("identity", {})},
    {"reduce_scatter": ("topk", {"ratio": 0.2}), "all_gather": ("int8", {})},
    {"reduce_scatter": ("powersgd", {"rank": 1}), "all_gather": ("delta", {})},  # reads the float32 shards themselves
]


def sharded(device: str, offload: bool) -> Net:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": MIXED}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device == "cuda")
    model = Net() if offload else Net().to(device)
    for block in [*model.blocks, model.branch]:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def trained(device: str, offload: bool, methods: dict[str, Any]) -> tuple[dict[str, Tensor], int]:
    model = sharded(device, offload)
    handle = cc.attach(model, **{op: cc.make(name, settings) for op, (name, settings) in methods.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # alike on both devices
    for step in range(3):
        loss_of(model, batch(dist.get_rank(), step).to(device)).backward()
        assert all(p.device.type == ("cpu" if offload else device) for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    with handle.exact():
        loss_of(model, batch(dist.get_rank(), 9).to(device))
    model.reshard()  # type: ignore[operator]
    return {name: p.cpu() for name, p in full(model).items()}, handle.ledger.totals().sent_bytes


def _against_kept_there(device: str) -> list[float]:
    """How far weights are, offloaded, from those of the same training on the device; the bytes are compared here."""
    distances = []
    for methods in METHODS:
        (kept, sent), (offloaded, sent_so) = (trained(device, offload, methods) for offload in (False, True))
        assert sent == sent_so
        distances.append(worst(kept, offloaded))
    return distances


def _identity_against_stock(device: str) -> float:
    stock, _ = trained(device, True, {})
    ours, _ = trained(device, True, METHODS[0])
    return worst(stock, ours)


def test_identity_is_stock_bit_for_bit_when_offloaded() -> None:
    assert run_ranks(2, _identity_against_stock, "cpu") == [0, 0]


def test_offloading_changes_no_number_and_no_byte() -> None:
    assert run_ranks(2, _against_kept_there, "cpu") == [[0, 0, 0]] * 2


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: with one rank nothing is sent")
def test_identity_is_stock_from_gpus_to_the_cpu_and_back() -> None:
    assert run_ranks(2, _on_gpus, _identity_against_stock) == [0, 0]
    assert max(max(found) for found in run_ranks(2, _on_gpus, _against_kept_there)) < 1e-5  # SGD rounds elsewhere


def _on_gpus(measure: Any) -> Any:
    """With NCCL for what is on the GPUs, beside gloo: a group of its own in place of the one that was joined."""
    rank, world, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    torch.cuda.set_device(rank)
    again = dist.PrefixStore("gpus", store)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=again, rank=rank, world_size=world)
    return measure("cuda")
