"""What an engine must compute from a draft's exported files, in one page of float64 arithmetic.

It is written from the formats' description and shares no code with `network`, so that each can check the other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def minimal_logits(config: dict[str, Any], tensors: dict[str, Tensor], embedded: Tensor, features: Tensor) -> Tensor:
    """Logits ``[T, D]``, float64, of the first step after each of T positions.

    ``config`` and ``tensors`` as read from an export of either format; ``embedded`` ``[T, h]``: of the token after each
    position; ``features`` ``[T, 3h]``. Rotary types other than default, linear and llama3: ValueError.
    """
    layer = config.get("transformer_layer_config", config)
    prefix = "layers.0." if "layers.0.mlp.up_proj.weight" in tensors else "midlayer."
    weights = {name.removeprefix(prefix): tensor.double() for name, tensor in tensors.items()}
    eps, heads, width = layer["rms_norm_eps"], layer["num_attention_heads"], layer["head_dim"]

    def linear(x: Tensor, name: str) -> Tensor:
        out: Tensor = x @ weights[f"{name}.weight"].t()
        return out

    def norm(x: Tensor, name: str) -> Tensor:
        out: Tensor = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weights[f"{name}.weight"]
        return out

    hidden = linear(features, "fc")
    x = torch.cat([norm(embedded, "input_layernorm"), norm(hidden, "hidden_norm")], -1)
    group = heads // layer["num_key_value_heads"]
    causal = torch.ones(len(x), len(x)).tril().bool()
    query, key, value = (linear(x, f"self_attn.{name}_proj").view(len(x), -1, width).unbind(1) for name in "qkv")
    attended = []
    for head in range(heads):
        scores = _rotate(query[head], layer) @ _rotate(key[head // group], layer).t() / math.sqrt(width)
        attended.append(scores.masked_fill(~causal, -math.inf).softmax(-1) @ value[head // group])
    hidden = hidden + linear(torch.cat(attended, -1), "self_attn.o_proj")
    x = norm(hidden, "post_attention_layernorm")
    gate = linear(x, "mlp.gate_proj")
    hidden = hidden + linear(gate * torch.sigmoid(gate) * linear(x, "mlp.up_proj"), "mlp.down_proj")
    return linear(norm(hidden, "norm"), "lm_head")


def _rotate(x: Tensor, layer: dict[str, Any]) -> Tensor:
    """``[T, head_dim]``: pairs (i, i + head_dim / 2) turned by position times their frequency."""
    half = x.shape[-1] // 2
    frequency = _frequencies(half, layer["rope_theta"], layer["rope_scaling"] or {"rope_type": "default"})
    angle = torch.arange(len(x), dtype=torch.float64)[:, None] * frequency
    first, second = x[:, :half], x[:, half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)


def _frequencies(half: int, theta: float, scaling: dict[str, Any]) -> Tensor:
    plain: Tensor = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    match scaling["rope_type"]:
        case "default":
            return plain
        case "linear":
            return plain / float(scaling["factor"])
        case "llama3":  # slow ones are divided, fast ones are not, those between in part
            turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            divided: Tensor = plain * (kept + (1 - kept) / scaling["factor"])
            return divided
    raise ValueError(f"export: cannot check rotary type {scaling['rope_type']}")
