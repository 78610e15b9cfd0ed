"""Attention: plain matrices, SDPA and each of its back ends, FlexAttention, flash-attn; all through transformers.

transformers lets others register functions under a name of theirs (`AttentionInterface`). SDPA's back ends are its own
SDPA function inside torch's `sdpa_kernel`, which allows one back end alone: where that one cannot take the tensors it
says so and nothing falls back.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.configuration_utils import PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_OF_TRANSFORMERS = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2", "flex": "flex_attention"}
_BACKENDS = {
    "sdpa-math": SDPBackend.MATH,
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
}


def set_in(hf_config: PreTrainedConfig, implementation: str) -> None:
    """Have the model of ``hf_config`` attend by ``implementation``, a name of `fsdp_lab.settings.operators.table`."""
    hf_config._attn_implementation = _OF_TRANSFORMERS.get(implementation, _registered(implementation))


def _registered(implementation: str) -> str:
    """The name that transformers knows; to transformers a name with "flash" in it is the flash-attn package."""
    return implementation.replace("-", "_by_").replace("flash", "fa")


def _register(implementation: str, backend: SDPBackend) -> None:
    def forward(*arguments: Any, **options: Any) -> tuple[Tensor, None]:
        with sdpa_kernel(backend):
            attended: tuple[Tensor, None] = sdpa_attention_forward(*arguments, **options)
            return attended

    AttentionInterface.register(_registered(implementation), forward)
    AttentionMaskInterface.register(_registered(implementation), sdpa_mask)


for _name, _backend in _BACKENDS.items():
    _register(_name, _backend)
