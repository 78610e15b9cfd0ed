"""HSDP: replicas of a sharded model, with another method between replicas than inside them.

    torchrun --nproc_per_node 4 -m examples.parallel.hsdp --compress topk        # or stock, or identity

The ranks are two replicas, as two machines would be; each shards the model among its own. Inside, where links are
fast, gradients are reduced uncompressed; between replicas they go by the method. Every replica decodes the same bytes,
so both keep the same weights, bit for bit.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, Model, batch, choice, finite, methods, report


def main() -> None:
    """Train on every rank that torchrun started: an even number of them."""
    compress = choice(__doc__)
    device = start()
    mesh = init_device_mesh(device.type, (2, dist.get_world_size() // 2), mesh_dim_names=("replicas", "shards"))
    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)

    handle = None
    if compress != "stock":
        between_replicas, parameters = methods(compress)
        handle = cc.attach(
            model,
            reduce_scatter="identity",
            all_reduce=between_replicas,
            all_reduce_gather=parameters,  # the sums' way back
            all_gather=parameters,
        )

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        loss = model(batch(dist.get_rank(), step).to(device))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if finite(norm):
            optimizer.step()
        elif handle is not None:
            handle.rollback()
        optimizer.zero_grad()
        losses.append(loss.item())

    report(losses, model, None if handle is None else handle.ledger)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
