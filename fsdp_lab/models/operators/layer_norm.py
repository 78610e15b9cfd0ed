"""LayerNorm (arXiv 1607.06450): (x - mean) / sqrt(variance + eps) * weight + bias, over the last dimension."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel


def install(hf: PreTrainedModel, implementation: str) -> None:
    """Normalise by ``implementation`` wherever the model has torch's `nn.LayerNorm`."""
    if implementation == "torch":
        return
    for module in hf.modules():
        if type(module) is nn.LayerNorm:
            module.forward = MethodType(_forward(implementation), module)  # type: ignore[method-assign]


@cache
def _forward(implementation: str) -> Callable[[Any, Tensor], Tensor]:
    if implementation == "plain":
        return lambda norm, x: _formula(x, norm.weight, norm.bias, norm.eps)
    from liger_kernel.transformers.functional import liger_layer_norm

    return lambda norm, x: liger_layer_norm(x, norm.weight, norm.bias, norm.eps)


def _formula(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The statistics in float32, weight and bias in the dtype of ``x``."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype) + bias
