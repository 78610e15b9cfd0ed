"""Muon under FSDP2, with compressed gradients, parameters and updates.

    torchrun --nproc_per_node 2 -m examples.optimizers.muon --compress topk        # or stock, or identity

Muon orthogonalises whole matrices, of which each rank has some rows. `cc.optim.Muon` gathers them by a collective of
its own, which is counted and may be compressed. Otherwise it is `torch.optim.Muon`, whose products of distributed
tensors send several times as much (examples/byte_audit.py). Everything but the blocks' matrices is AdamW's.
"""

from __future__ import annotations

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

    handle, updates = None, None
    if compress != "stock":
        gradients, updates = methods(compress)
        handle = cc.attach(model, reduce_scatter=gradients, all_gather=updates)

    gathers = cc.optim.attach(cc.optim.matrices(model, ["blocks.0", "blocks.1"]), updates)
    matrices = {matrix.name for unit in gathers.units for matrix in unit.matrices}
    rest = [p for name, p in model.named_parameters() if name not in matrices]
    optimizer = cc.optim.Muon(gathers, rest, lr=0.01)

    losses = []
    for step in range(STEPS):
        loss = model(batch(dist.get_rank(), step).to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    ledgers = None if handle is None else {"model": handle.ledger, "optimizer": gathers.ledger}
    report(losses, model, None if ledgers is None else cc.parallel.JoinedLedger(ledgers))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
