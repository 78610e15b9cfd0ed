"""What the examples share: a model of 25,000 parameters, its data, the methods to choose from, the lines printed last.

Nothing here is about compression except `methods`; the examples themselves show where `comm_compress.attach` goes.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import comm_compress as cc

STEPS, VOCABULARY, WIDTH = 20, 64, 48


class Block(nn.Module):
    """A residual layer of two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, WIDTH]`` to the same shape."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Model(nn.Module):
    """Guesses the next token from the last one alone; its weights are the same on every rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        """The loss (nats a token) of ``input_ids`` ``[batch, tokens]``."""
        x = self.embedding(input_ids[:, :-1])
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), input_ids[:, 1:].flatten())


def batch(rank: int, step: int) -> Tensor:
    """``[16, 17]`` tokens of this rank and step. Each is a function of the one before, so there is much to learn."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    columns = [torch.randint(VOCABULARY, (16,), generator=generator)]
    for _ in range(16):
        columns.append((5 * columns[-1] + 3) % VOCABULARY)
    return torch.stack(columns, 1)


def choice(description: str | None) -> str:
    """What the command line says after ``--compress``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--compress",
        choices=["stock", "identity", "topk"],
        default="topk",
        help="stock: comm_compress is not attached; identity: it carries everything uncompressed, and must give the "
        "same losses and weights; topk: 1 percent of the gradients, int8 parameters",
    )
    return str(parser.parse_args().compress)


def methods(choice: str) -> tuple[str, str]:
    """The methods for gradients and for parameters, as `comm_compress.attach` takes them."""
    return ("topk ratio=0.01", "int8") if choice == "topk" else ("identity", "identity")


def finite(norm: Tensor) -> bool:
    """Is a gradient's norm finite? The same answer on every rank, also when only one of them had the NaN."""
    return bool(torch.isfinite(norm.full_tensor() if isinstance(norm, DTensor) else norm))


def report(losses: Sequence[float], model: nn.Module, ledger: cc.Ledger | None) -> None:
    """Print losses, a fingerprint of the weights and what was sent. To be called on every rank; rank 0 prints."""
    digest = hashlib.sha256()
    for _, p in sorted(model.named_parameters()):
        whole = p.detach().full_tensor() if isinstance(p, DTensor) else p.detach()
        digest.update(whole.cpu().numpy().tobytes())
    if torch.distributed.get_rank() != 0:
        return
    print("losses", *(f"{loss:.9g}" for loss in losses))  # nine digits tell any two float32 numbers apart
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, weights {digest.hexdigest()[:16]}")
    if ledger is not None:
        for op in (
            "reduce_scatter",
            "all_gather",
            "all_reduce",
            "activations",
            "activation_gradients",
            "outer",
            "optimizer",
        ):
            totals = ledger.totals(op)
            if totals.calls:
                print(f"{op}: {totals.calls} calls, {totals.sent_bytes} bytes sent, {4 * totals.elements} in float32")
