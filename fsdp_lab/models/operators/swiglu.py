"""SwiGLU (arXiv 2002.05202): silu(gate(x)) * up(x), the middle of an MLP, ``[B, T, intermediate]``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.architectures.families import blocks_of


def fits(hf_config: PreTrainedConfig) -> bool:
    """Does the model's MLP compute SwiGLU, and not another activation?"""
    return getattr(hf_config, "hidden_act", None) in ("silu", "swish")


def install(hf: PreTrainedModel, implementation: str) -> None:
    """Gate by ``implementation`` in every block."""
    if implementation == "plain":
        return
    gated = _gated(implementation)

    def forward(mlp: Any, x: Tensor) -> Tensor:
        down: Tensor = mlp.down_proj(gated(mlp.gate_proj(x), mlp.up_proj(x)))
        return down

    for block in blocks_of(hf).values():
        mlp: Any = block.mlp
        mlp.forward = MethodType(forward, mlp)


@cache
def _gated(implementation: str) -> Callable[[Tensor, Tensor], Tensor]:
    if implementation == "compiled":
        return torch.compile(_formula)
    from liger_kernel.transformers.functional import liger_swiglu

    gated: Callable[[Tensor, Tensor], Tensor] = liger_swiglu
    return gated


def _formula(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up
