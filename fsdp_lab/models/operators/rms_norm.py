"""RMSNorm (arXiv 1910.07467): x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel


def install(hf: PreTrainedModel, implementation: str) -> None:
    """Normalise by ``implementation`` wherever the model has an RMSNorm, also of queries and keys."""
    if implementation == "plain":
        return
    for module in hf.modules():
        if _is_rms_norm(module):
            module.forward = MethodType(_forward(implementation, type(module).forward), module)


def _is_rms_norm(module: nn.Module) -> bool:
    """Is it one of transformers' classes, each family's own? All have ``weight`` and ``variance_epsilon``."""
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")


@cache
def _forward(implementation: str, theirs: Callable[..., Tensor]) -> Callable[[Any, Tensor], Tensor]:
    if implementation == "torch":
        return lambda norm, x: F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
    if implementation == "compiled":
        formula = torch.compile(_formula)
        return lambda norm, x: formula(x, norm.weight, norm.variance_epsilon)
    from liger_kernel.transformers.functional import liger_rms_norm

    return lambda norm, x: liger_rms_norm(x, norm.weight, norm.variance_epsilon)


def _formula(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As transformers has it: the statistics in float32, the weight in the dtype of ``x``."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
