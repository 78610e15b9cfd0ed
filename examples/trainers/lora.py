"""LoRA adapters (peft) under FSDP2, with compressed gradients and parameters.

    torchrun --nproc_per_node 2 -m examples.trainers.lora --compress topk        # or stock, or identity

The order is: peft, then `fully_shard`, then `comm_compress.attach`. Gradients are those of the adapters alone, a tenth
of this model; what FSDP2 gathers at every step is the whole model. With ``keep_frozen=True`` the frozen weights are
sent once and kept by every rank, so that only adapters travel. Needs peft 0.21 (``pip install -e .[examples]``).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, Model, batch, choice, methods, report


def main() -> None:
    """Train on every rank that torchrun started."""
    compress = choice(__doc__)
    device = start()
    torch.manual_seed(1)  # the adapters must begin alike on every rank
    model = get_peft_model(Model(), LoraConfig(r=4, lora_alpha=16, target_modules=["up", "down", "head"])).to(device)
    for block in model.base_model.model.blocks:
        fully_shard(block)
    fully_shard(model)

    handle = None
    if compress != "stock":
        gradients, parameters = methods(compress)
        handle = cc.attach(model, reduce_scatter=gradients, all_gather=parameters, keep_frozen=True)

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for step in range(STEPS):
        loss = model(batch(dist.get_rank(), step).to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    report(losses, model, None if handle is None else handle.ledger)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
