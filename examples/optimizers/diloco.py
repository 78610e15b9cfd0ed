"""Local steps (DiLoCo): two replicas that synchronise every five steps, where DDP exchanges every gradient.

    torchrun --nproc_per_node 2 -m examples.optimizers.diloco --compress topk        # or stock, or identity

Each rank trains a replica with an AdamW of its own. Every five steps replicas exchange pseudo-gradients (how far they
have moved since the last time), and the outer optimizer (SGD with Nesterov momentum) moves all of them by the mean. In
between nothing is sent.

"stock" uses torch's own all-reduce, "identity" ours, "topk" what SparseLoCo sends: the largest elements of each chunk
in two bits (a sixteenth of them here; its authors take 64 of 4096), what was left out at a later synchronisation, and
no outer momentum. The last lines say how good the outer parameters are, which all replicas share (a replica's own loss
is lower: it has gone on alone), and what a step costs beside DDP with the same model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, Model, batch, choice, finite, report

EVERY = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "stock": {"outer_optimizer": cc.outer.nesterov(lr=0.7, momentum=0.9)},
    "identity": {"method": "identity", "outer_optimizer": cc.outer.nesterov(lr=0.7, momentum=0.9)},
    "topk": {
        "method": "topk selection=chunked chunk_size=4096 ratio=0.0625 values=binned error_feedback(decay=0.95)",
        "exchange": "all_gather",
        "outer_optimizer": cc.outer.averaging(lr=1.0),
    },
}


def main() -> None:
    """Train on every rank that torchrun started: each is a replica."""
    compress = choice(__doc__)
    device = start()
    model = Model().to(device)  # the same weights on every rank; `attach` looks
    handle = cc.outer.attach(model, every=EVERY, **SETTINGS[compress])

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        loss = model(batch(dist.get_rank(), step).to(device))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if finite(norm):
            optimizer.step()
        optimizer.zero_grad()
        handle.step()  # after every step, also a skipped one
        losses.append(loss.item())

    report(losses, model, handle.ledger)
    with handle.outer_parameters(), torch.no_grad():
        shared = model(batch(dist.get_world_size(), STEPS).to(device))  # tokens that no replica has seen
    if dist.get_rank() == 0:
        print(f"outer parameters: loss {shared.item():.9g}")
    if dist.get_rank() == 0 and compress != "stock":
        sent = handle.ledger.totals("outer").sent_bytes / STEPS
        ranks, parameters = dist.get_world_size(), sum(p.numel() for p in model.parameters())
        ddp = 2 * 4 * parameters * (ranks - 1) / ranks
        print(f"{sent:.0f} bytes a step, {handle.bits:.3f} bits a parameter; DDP: {ddp:.0f} bytes, 64 bits")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
