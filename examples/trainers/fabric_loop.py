"""A training loop under Lightning Fabric with FSDP2, and compressed gradients and parameters.

    torchrun --nproc_per_node 2 -m examples.trainers.fabric_loop --compress topk        # or stock, or identity

Fabric's strategy for FSDP2 is `ModelParallelStrategy`: it calls a function of ours in `Fabric.setup`, which shards the
model. `comm_compress.attach` comes after `Fabric.setup`. Needs lightning-fabric 2.6 (``pip install -e .[examples]``).
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from examples.tiny import STEPS, Model, batch, choice, finite, methods, report


def shard(model: Model, mesh: DeviceMesh) -> Model:
    """What Fabric calls with its mesh, whose other dimension is for tensor parallelism."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])  # type: ignore[no-any-return]


def main() -> None:
    """Train on every rank that torchrun started."""
    compress = choice(__doc__)
    ranks = int(os.environ["WORLD_SIZE"])  # from torchrun; on one machine
    strategy = ModelParallelStrategy(shard, data_parallel_size=ranks, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cuda" if torch.cuda.is_available() else "cpu", devices=ranks, strategy=strategy)
    fabric.launch()

    model = fabric.setup(Model())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=0.01))

    handle = None
    if compress != "stock":
        gradients, parameters = methods(compress)
        handle = cc.attach(model.module, reduce_scatter=gradients, all_gather=parameters)

    losses = []
    for step in range(STEPS):
        loss = model(batch(fabric.global_rank, step).to(fabric.device))
        fabric.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if finite(norm):
            optimizer.step()
        elif handle is not None:
            handle.rollback()
        optimizer.zero_grad()
        losses.append(loss.item())

    report(losses, model.module, None if handle is None else handle.ledger)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
