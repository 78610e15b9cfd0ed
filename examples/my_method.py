"""A method of one's own: defined, registered, held to the laws of all methods, and trained with.

    torchrun --nproc_per_node 2 -m examples.my_method

The method sends a byte an element and one scale for each row. Rank 0 first prints which laws hold for it, then the
lines that the other examples print. Once it is registered, its name works wherever a method is named; error feedback
and the other wrappers come with it. In a package of its own it needs an entry point: docs/library/plugins.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from examples.fsdp2 import start
from examples.tiny import STEPS, Model, batch, report


@dataclass(frozen=True)
class RowByteConfig:
    """``levels``: how many values an element may have on either side of zero."""

    levels: int = 127

    def __post_init__(self) -> None:
        cc.require(1 <= self.levels <= 127, "levels", self.levels, "between 1 and 127")


@cc.register("rowbyte", RowByteConfig)
class RowByte(cc.Codec):
    """Rounds each element to a multiple of its row's scale, which is the largest element over ``levels`` + 1."""

    traits = cc.Traits()

    def __init__(self, config: RowByteConfig) -> None:
        self.levels = config.levels

    def layout(self, n: int, dtype: torch.dtype) -> cc.Layout:
        """What a row of ``n`` elements becomes on the wire: its bytes are counted by this."""
        return cc.Layout(cc.Field("scale", torch.float32, 1, "metadata"), cc.Field("codes", torch.int8, n, "values"))

    def encode(self, rows: Tensor, state: cc.State) -> cc.Encoded:
        """Rows ``[W, n]``, one for each rank, as bytes. A NaN or infinity makes the scale one, and so the whole row."""
        out = state.message(rows, self.layout(rows.shape[1], rows.dtype))
        rows = rows.float()
        peak = rows.abs().amax(1, keepdim=True) if rows.shape[1] else rows.new_zeros(len(rows), 1)
        scale = peak / (self.levels + 1)
        codes = torch.where(scale > 0, rows / scale, 0).nan_to_num(0).round().clamp(-self.levels, self.levels)
        out["scale"].copy_(scale)
        out["codes"].copy_(codes)
        return out

    def decode(self, encoded: cc.Encoded) -> Tensor:
        """Rows ``[W, n]`` in float32."""
        return encoded["codes"].float() * encoded["scale"]


METHOD = "rowbyte levels=7 error_feedback=true"


def check_laws() -> None:
    """Print which laws hold for the method. AssertionError for the first that does not."""

    def build() -> cc.Compressor:
        method = cc.make(METHOD)
        assert method is not None
        return method

    for law in cc.conformance.laws_for(build()):
        law(build)
        print(f"holds {law.__name__}")


def main() -> None:
    """Check the method, then train with it on every rank that torchrun started."""
    device = start()
    if dist.get_rank() == 0:
        check_laws()

    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    handle = cc.attach(model, reduce_scatter=METHOD, all_gather="int8")

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        loss = model(batch(dist.get_rank(), step).to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    report(losses, model, handle.ledger)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
