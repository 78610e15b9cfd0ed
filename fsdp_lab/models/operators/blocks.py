"""What is done to whole blocks: activation checkpointing (arXiv 1604.06174) and torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.architectures.families import blocks_of


def install(
    hf: PreTrainedModel,
    recompute: bool,
    compile: bool,
    is_random: bool = False,
    contexts: Callable[[], Any] | None = None,
    hooks_change: bool = False,
) -> None:
    """Sets up activation checkpointing and compilation of every block; no parameter's name changes.

    Checkpointing wraps a block's forward and not the block, so FSDP2's hooks stay outside and gather once.
    ``is_random``: are random numbers drawn in a block? ``contexts``: of a block's forward and of its recomputation, for
    `torch.utils.checkpoint`. ``hooks_change``: are the blocks' hooks others in every step, as those of virtual ranks
    are? They stay outside of what is compiled then: else every step would be compiled anew.
    """
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": is_random}
    if contexts is not None:
        options["context_fn"] = contexts
    for block in blocks_of(hf).values():
        if recompute:
            block.forward = partial(checkpoint, block.forward, **options)
        if compile and hooks_change:
            block.forward = torch.compile(block.forward)
        elif compile:
            block.compile()


def compile_whole(module: nn.Module, choices: dict[str, str]) -> None:
    """Compiles the model with its loss, where that was chosen; once it is sharded, so that FSDP2's hooks are seen."""
    if choices["compile"] == "whole":
        module.compile()
