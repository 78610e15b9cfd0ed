"""MiniCPM and MiniCPM4: Llama with factors on embeddings, residual branches and logits.

transformers has no such architecture. Published folders bring Python code of their own, which is never run. This file
computes what the published ``modeling_minicpm.py`` does (arXiv 2404.06395, arXiv 2506.07900):

    x_0    = scale_emb * embedding
    x_l+1  = x_l + scale_depth / sqrt(layers) * branch(norm(x_l))        (attention, then MLP)
    logits = head(norm(x_L) / (hidden_size / dim_model_base))

transformers' Granite computes exactly that under other names. Rotary positions are plain, linear or LongRoPE's.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.granite.configuration_granite import GraniteConfig
from transformers.models.granite.modeling_granite import GraniteForCausalLM, GraniteRotaryEmbedding

_FACTORS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
_ROTARY = ("default", "linear", "longrope")
_NOT_COMPUTED = {  # settings of related models that compute something else
    "sparse_config": "sparse attention (InfLLM v2), which is not computed here; its authors describe dense attention "
    "as what the same weights do without it: remove sparse_config from a copy of the folder",
    "num_experts": "a mixture of experts, which is not computed here",
    "quantization_config": "quantised weights; give the folder that they were made of",
}


class MiniCPMConfig(GraniteConfig):  # type: ignore[misc]
    """A MiniCPM's settings under their published names, and Granite's made from them.

    ValueError for what would be computed otherwise: sparse attention, experts, quantised weights, other rotary types.
    """

    model_type = "minicpm"

    scale_emb: float | int = 1.0
    scale_depth: float | int = 1.0
    dim_model_base: float | int = 1
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        for name, reason in _NOT_COMPUTED.items():
            if kwargs.get(name):
                raise ValueError(f"{name}: {reason}")
        if kwargs.pop("pretraining_tp", 1) != 1:
            raise ValueError("pretraining_tp: only 1 has the published logits")
        for name in ("scale_emb", "scale_depth", "dim_model_base"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}, wants a number above 0")
        super().__post_init__(**kwargs)
        head_dim = getattr(self, "head_dim", None) or self.hidden_size // self.num_attention_heads
        self.embedding_multiplier = float(self.scale_emb)
        self.residual_multiplier = self.scale_depth / math.sqrt(self.num_hidden_layers)
        self.attention_multiplier = 1 / math.sqrt(head_dim)
        self.logits_scaling = self.hidden_size / self.dim_model_base
        self._check_rotary(head_dim)

    def to_dict(self) -> dict[str, Any]:
        """The settings as published: without Granite's names, and rotary settings where older readers look for them."""
        published: dict[str, Any] = super().to_dict()
        for name in _FACTORS:
            published.pop(name, None)
        rotary = dict(published.pop("rope_parameters", None) or {})
        published["rope_theta"] = rotary.pop("rope_theta", self.default_theta)
        published["rope_scaling"] = None if rotary.get("rope_type", "default") == "default" else rotary
        return published

    def rotary_config(self) -> MiniCPMConfig:
        """This configuration with one list of LongRoPE's factors.

        The published code fills its table once, for the whole context: with the long factors where the context is
        longer than the one trained first, and else with the short ones. transformers chooses by a batch's length.
        """
        config = copy.deepcopy(self)
        rotary = config.rope_parameters
        if rotary["rope_type"] == "longrope":
            is_long = self.max_position_embeddings > rotary["original_max_position_embeddings"]
            chosen = rotary["long_factor" if is_long else "short_factor"]
            rotary["short_factor"] = rotary["long_factor"] = chosen
        return config

    def _check_rotary(self, head_dim: int) -> None:
        rotary = self.rope_parameters
        kind = rotary["rope_type"]
        if kind not in _ROTARY:
            raise ValueError(f"rope_scaling: rotary type {kind!r} is not computed here; known: {', '.join(_ROTARY)}")
        if kind != "longrope":
            return
        for name in ("short_factor", "long_factor"):
            factors = rotary.get(name)
            if not isinstance(factors, list) or len(factors) != head_dim // 2:
                raise ValueError(f"rope_scaling: {name} wants {head_dim // 2} numbers, half of a head's width")
            if not all(isinstance(value, int | float) and 0 < value < math.inf for value in factors):
                raise ValueError(f"rope_scaling: {name} wants numbers above 0")
        trained = rotary["original_max_position_embeddings"]
        if type(trained) is not int or not 1 < trained <= self.max_position_embeddings:
            raise ValueError("rope_scaling: original_max_position_embeddings wants 2 to max_position_embeddings")
        if rotary.get("factor", self.max_position_embeddings / trained) != self.max_position_embeddings / trained:
            raise ValueError("rope_scaling: factor is not max_position_embeddings / original_max_position_embeddings")
        if rotary.get("attention_factor") is not None:
            raise ValueError("rope_scaling: attention_factor is not part of the published arithmetic")


class MiniCPMForCausalLM(GraniteForCausalLM):  # type: ignore[misc]
    """Granite's modules with a MiniCPM's settings; parameters have the published names."""

    config_class = MiniCPMConfig

    def __init__(self, config: MiniCPMConfig) -> None:
        super().__init__(config)
        self.model.rotary_emb = GraniteRotaryEmbedding(config.rotary_config())


AutoConfig.register("minicpm", MiniCPMConfig, exist_ok=True)
AutoModelForCausalLM.register(MiniCPMConfig, MiniCPMForCausalLM, exist_ok=True)
