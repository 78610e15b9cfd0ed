"""A pipeline of two stages by torch.distributed.pipelining: activations and their gradients compressed between them.

    torchrun --nproc_per_node 2 -m examples.parallel.pipeline_parallel --compress "tahquant tile_size=16"

Or with --compress stock or identity, which give the same numbers as one another.

The first rank has the embedding and a block, the second the other block and the head. The method named carries
activations to the second rank; their gradients come back in bfloat16 (with identity, as they are). Each rank has an
optimizer of its own.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, Model, batch

STAGES, MICRO_BATCHES = 2, 4


def part(stage: int) -> nn.Module:
    """Half of the examples' model, with the same weights as the whole has."""
    model = Model()
    return nn.Sequential(model.embedding, model.blocks[0]) if stage == 0 else nn.Sequential(model.blocks[1], model.head)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy, in nats a token."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def fingerprint(module: nn.Module) -> str:
    """The first letters of a digest of all weights."""
    digest = hashlib.sha256()
    for p in module.parameters():
        digest.update(p.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def report(losses: list[float], module: nn.Module, activations: cc.parallel.Activations | None) -> None:
    """Print what both ranks have to say, on rank 0."""
    lines = [f"stage {dist.get_rank()}: weights {fingerprint(module)}"]
    if losses:
        lines += [
            " ".join(["losses", *(f"{loss:.9g}" for loss in losses)]),
            f"loss {losses[0]:.3f} -> {losses[-1]:.3f}",
        ]
    for op in ("activations", "activation_gradients"):
        totals = cc.Totals() if activations is None else activations.ledger.totals(op)
        if totals.sent_bytes:
            said = f"{totals.sent_bytes} bytes sent, {4 * totals.elements} in float32"
            lines.append(f"{op}: {totals.calls} calls, {said}")
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, lines)
    if dist.get_rank() == 0:
        print(*(line for lines in everyone for line in lines), sep="\n")


def main() -> None:
    """Train on the two ranks that torchrun started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compress", default="tahquant tile_size=16", help="a method, or stock: torch's own stage")
    compress = parser.parse_args().compress
    activations: cc.parallel.Activations | None = None
    if compress != "stock":
        try:
            activations = cc.parallel.Activations(compress, "identity" if compress == "identity" else "bf16")
        except ValueError as e:
            parser.error(str(e))
    device = start()
    rank = dist.get_rank()
    if dist.get_world_size() != STAGES:
        raise SystemExit(f"this example has {STAGES} stages: start it with torchrun --nproc_per_node {STAGES}")

    module = part(rank)
    stage: Any
    if activations is not None:
        stage = cc.parallel.CompressedStage(module, rank, STAGES, device, activations=activations)
    else:
        stage = PipelineStage(module, rank, STAGES, device)
    schedule = Schedule1F1B(stage, n_microbatches=MICRO_BATCHES, loss_fn=loss_of)

    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        tokens = batch(0, step).to(device)
        if rank == 0:
            schedule.step(tokens[:, :-1].contiguous())  # torch 2.11 wants the micro-batches' strides
        else:
            of_micro_batches: list[Tensor] = []
            schedule.step(target=tokens[:, 1:], losses=of_micro_batches)
            losses.append(torch.stack(of_micro_batches).mean().item())
        optimizer.step()
        optimizer.zero_grad()

    report(losses, module, activations)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
