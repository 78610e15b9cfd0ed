"""A plain FSDP2 training loop, with gradients and parameters compressed.

    torchrun --nproc_per_node 2 -m examples.fsdp2 --compress topk        # or stock, or identity

The one line for a loop of your own is `comm_compress.attach`, after the last `fully_shard` and before the first
step. The handle that it returns counts what is sent; `Handle.state_dict` belongs into checkpoints, and
`Handle.rollback` before a step that is skipped because its gradients are not finite.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from examples.tiny import STEPS, Model, batch, choice, finite, methods, report


def start() -> torch.device:
    """Join the other ranks; this rank's device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    return torch.device("cuda", torch.cuda.current_device())


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
