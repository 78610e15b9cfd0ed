"""Tensor parallelism by torch's `parallelize_module`, with activations and their gradients compressed.

    torchrun --nproc_per_node 2 -m examples.parallel.tensor_parallel --compress topk        # or stock, or identity

`cc.parallel`'s styles take the place of torch's own. Activations cannot be sparse here, so "topk" stands for fp8
activations and int8 gradients. All ranks train on the same batch: each holds a part of every matrix.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel as stock

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, Model, batch, choice, report


def main() -> None:
    """Train on every rank that torchrun started."""
    compress = choice(__doc__)
    device = start()
    model = Model().to(device)
    activations = None
    up, down = stock.ColwiseParallel(), stock.RowwiseParallel()
    if compress != "stock":
        methods = ("fp8", "int8") if compress == "topk" else ("identity", "identity")
        activations = cc.parallel.Activations(*methods, model=model)
        up = cc.parallel.ColwiseParallel(activations=activations)
        down = cc.parallel.RowwiseParallel(activations=activations)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    stock.parallelize_module(model, mesh, {"blocks.*.up": up, "blocks.*.down": down})

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(STEPS):
        loss = model(batch(0, step).to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    report(losses, model, None if activations is None else activations.ledger)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
