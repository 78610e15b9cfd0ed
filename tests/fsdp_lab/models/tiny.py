"""Tiny models of every family, made and saved by transformers itself. Sizes are multiples of no world size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import fsdp_lab.models.architectures.minicpm  # noqa: F401 - tells transformers of it

VOCABULARY, CONTEXT = 257, 24
_MODERN: dict[str, Any] = {
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
_STRETCHED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 12,
}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_embd": 36, "n_layer": 2, "n_head": 2, "n_positions": CONTEXT}),
    "qwen2": ("qwen2", {**_MODERN, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**_MODERN, "head_dim": 10, "num_key_value_heads": 3, "tie_word_embeddings": False}),
    "llama": ("llama", {**_MODERN, "rope_scaling": _STRETCHED, "rope_theta": 5e5, "tie_word_embeddings": False}),
    "minicpm": ("minicpm", {**_MODERN, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 9}),
    "llama-tied": ("llama", {**_MODERN, "num_key_value_heads": 6, "tie_word_embeddings": True}),
}


def tiny_config(name: str) -> Any:
    family, shape = TINY[name]
    return AutoConfig.for_model(family, vocab_size=VOCABULARY, bos_token_id=256, eos_token_id=256, **shape)


def save_tiny(name: str, folder: Path) -> Path:
    """A folder with random weights, none of them zero or one (as biases and norms are after initialisation)."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(tiny_config(name))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder / name)
    return folder / name


def some_tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (3, CONTEXT), generator=torch.Generator().manual_seed(2))


def logits_of(folder: Path) -> torch.Tensor:
    """transformers' own, float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: torch.Tensor = model(some_tokens()).logits
    return logits
