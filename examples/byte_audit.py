"""Who sends which bytes: three steps of FSDP2 with Muon, counted by collective and caller.

    torchrun --nproc_per_node 2 -m examples.byte_audit --compress topk        # or stock, or identity

`comm_compress.audit` counts whatever the block moves: FSDP2's own collectives, the compressed ones, and what Muon does
to orthogonalise whole matrices. It prints the table of rank 0, whose last lines compare it with the ledger. With
``topk`` gradients and parameters have become small, and the optimizer's own collectives are most of what is left.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import Model, batch, choice, methods

STEPS = 3


def main() -> None:
    """Train on every rank that torchrun started."""
    compress = choice(__doc__)
    device = start()
    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)

    handles = []
    if compress != "stock":
        gradients, parameters = methods(compress)
        handles.append(cc.attach(model, reduce_scatter=gradients, all_gather=parameters))

    matrices = [p for block in model.blocks for p in block.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    muon: torch.optim.Optimizer = torch.optim.Muon(matrices, lr=0.02)
    adamw = torch.optim.AdamW(rest, lr=0.01)

    with cc.audit(*handles) as audit:
        for step in range(STEPS):
            loss = model(batch(dist.get_rank(), step).to(device))
            loss.backward()
            muon.step()
            adamw.step()
            model.zero_grad()

    if dist.get_rank() == 0:
        print(audit.table())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
