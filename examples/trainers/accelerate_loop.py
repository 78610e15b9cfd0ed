"""A training loop under Hugging Face Accelerate with FSDP2, and compressed gradients and parameters.

    torchrun --nproc_per_node 2 -m examples.trainers.accelerate_loop --compress topk        # or stock, or identity

`comm_compress.attach` comes after `Accelerator.prepare`, which is where accelerate shards the model. Needs accelerate
1.15 (``pip install -e .[examples]``).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType

import comm_compress as cc
from examples.tiny import STEPS, Model, batch, choice, finite, methods, report


def accelerator_with_fsdp2() -> Accelerator:
    """One unit a `Block`, as ``fsdp_version: 2`` in the configuration of ``accelerate launch`` gives it."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), fsdp_plugin=plugin)
    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        # accelerate drops the plugin without a GPU and would use DDP; FSDP2 itself runs on CPUs too
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    return accelerator


def main() -> None:
    """Train on every rank that torchrun or accelerate launch started."""
    compress = choice(__doc__)
    accelerator = accelerator_with_fsdp2()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)

    handle = None
    if compress != "stock":
        gradients, parameters = methods(compress)
        handle = cc.attach(model, reduce_scatter=gradients, all_gather=parameters)

    losses = []
    for step in range(STEPS):
        loss = model(batch(accelerator.process_index, step).to(accelerator.device))
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
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
