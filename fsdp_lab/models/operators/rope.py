"""Rotary positions (arXiv 2104.09864) of queries ``[B, H, T, Q]`` and keys ``[B, K, T, Q]``.

transformers' attention calls its module's function ``apply_rotary_pos_emb``. To replace it in one model, and in no
other of the process, each attention gets its own forward again with another function under that name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.architectures.families import blocks_of

_NAME = "apply_rotary_pos_emb"


def install(hf: PreTrainedModel, implementation: str) -> None:
    """Rotate by ``implementation`` in every block."""
    if implementation == "plain":
        return
    for block in blocks_of(hf).values():
        attention: Any = block.self_attn
        forward = _unwrapped(type(attention).forward)
        theirs = forward.__globals__[_NAME]
        attention.forward = MethodType(_with_rotary(forward, _rotary(implementation, theirs)), attention)


@cache
def _rotary(implementation: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    if implementation == "compiled":
        return torch.compile(theirs)
    from liger_kernel.transformers.functional import liger_rope

    def rotary(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return liger_rope(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)

    return rotary


def _with_rotary(forward: FunctionType, rotary: Callable[..., Any]) -> FunctionType:
    """``forward`` with another ``apply_rotary_pos_emb``. Its globals are a copy that is no module's: without a name, as
    torch.compile would else look the function up in the module of that name."""
    names = {name: value for name, value in forward.__globals__.items() if name != "__name__"} | {_NAME: rotary}
    return FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)


def _unwrapped(forward: Any) -> FunctionType:
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    assert isinstance(forward, FunctionType)
    assert _NAME in forward.__code__.co_names, "transformers rotates in its attention"
    return forward
