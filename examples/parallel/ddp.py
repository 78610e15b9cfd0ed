"""DistributedDataParallel: its gradients compressed in both halves of the all-reduce.

    torchrun --nproc_per_node 2 -m examples.parallel.ddp --compress topk        # or stock, or identity

DDP has no shards and gathers no parameters. Each bucket of gradients is reduce-scattered by the first method, averaged
in float32, and brought back to all ranks exactly, or by `all_gather`. DDP changes its buckets after the first
backward, so that one goes uncompressed.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, Model, batch, choice, finite, methods, report


def main() -> None:
    """Train on every rank that torchrun started."""
    compress = choice(__doc__)
    device = start()
    model = DistributedDataParallel(Model().to(device))

    handle = None
    if compress != "stock":
        gradients, sums = methods(compress)
        handle = cc.ddp.attach(model, gradients, all_gather=sums)

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

    report(losses, model.module, None if handle is None else handle.ledger)
    del model  # freed after its group, torch's DDP sometimes waits for ever (seen with gloo, 2.13)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
