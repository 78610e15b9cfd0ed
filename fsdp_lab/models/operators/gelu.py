"""GELU (arXiv 1606.08415): x times the normal distribution's function, by erf (BERT) or by its tanh formula (GPT-2).

Liger has no kernel for it: its GEGLU is the gated one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import GELUActivation, NewGELUActivation
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel

_BY_TANH = {"gelu_new": True, "gelu": False}  # config.json's names


def fits(hf_config: PreTrainedConfig) -> bool:
    """Does the model compute GELU, by one of the two formulas?"""
    return hf_config.hidden_act in _BY_TANH if hasattr(hf_config, "hidden_act") else _gpt2_fits(hf_config)


def _gpt2_fits(hf_config: PreTrainedConfig) -> bool:
    return getattr(hf_config, "activation_function", None) in _BY_TANH


def install(hf: PreTrainedModel, implementation: str) -> None:
    """Activate by ``implementation`` wherever the model has a GELU; torch's own is left where it is."""
    for module in hf.modules():
        by_tanh = isinstance(module, NewGELUActivation)
        if by_tanh or isinstance(module, GELUActivation):
            if implementation == ("plain" if by_tanh else "torch"):
                continue
            module.forward = MethodType(_forward(implementation, by_tanh), module)


@cache
def _forward(implementation: str, by_tanh: bool) -> Callable[[Any, Tensor], Tensor]:
    formula = _tanh if by_tanh else _erf
    if implementation == "torch":
        return lambda _, x: F.gelu(x, approximate="tanh" if by_tanh else "none")
    if implementation == "compiled":
        compiled = torch.compile(formula)
        return lambda _, x: compiled(x)
    return lambda _, x: formula(x)


def _tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
