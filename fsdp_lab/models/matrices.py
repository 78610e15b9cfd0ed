"""The matrices of a model's blocks, which Muon orthogonalises: embeddings, head and vectors are AdamW's."""

from __future__ import annotations

from typing import Any

from torch import nn

import comm_compress as cc
from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.settings.groups import CommConfig


def matrices_of_blocks(module: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """The trainable matrices of every block of ``module.hf``, by their names in ``module``, block by block.

    Raises ValueError for a module that has no language model.
    """
    hf = getattr(module, "hf", None)
    if hf is None:
        raise ValueError("optimizer: muon is for the blocks of language models; give adamw")
    return cc.optim.matrices(module, [f"hf.{name}" for name in blocks_of(hf)])


def how_matrices_travel(config: CommConfig, seed: int) -> dict[str, Any]:
    """The keywords of `cc.optim.attach` and `cc.optim.VirtualHandle`."""
    return {"method": config.optimizer_compress, "exchange": config.optimizer_exchange, "seed": seed}
