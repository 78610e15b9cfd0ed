"""Muon under FSDP2, with compressed gradients and parameters.

    torchrun --nproc_per_node 2 -m examples.muon --compress topk        # or stock, or identity

`torch.optim.Muon` updates matrices only, so AdamW has the rest. It orthogonalises the momentum of whole matrices: under
FSDP2 these are distributed tensors, and their products are collectives of their own, in every step. Those are the
optimizer's: `comm_compress` neither compresses nor counts them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, Model, batch, choice, methods, report


def main() -> None:
    """Train on every rank that torchrun started."""
    compress = choice(__doc__)
    device = start()
    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)

    handle = None
    if compress != "stock":
        gradients, parameters = methods(compress)
        handle = cc.attach(model, reduce_scatter=gradients, all_gather=parameters)

    matrices = [p for block in model.blocks for p in block.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=0.01)]

    losses = []
    for step in range(STEPS):
        loss = model(batch(dist.get_rank(), step).to(device))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())

    report(losses, model, None if handle is None else handle.ledger)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
