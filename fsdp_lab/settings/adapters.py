"""LoRA's settings: which layers of a family's blocks can have adapters, and what is set where the user says nothing."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any

from fsdp_lab.settings.groups import LoraConfig
from fsdp_lab.settings.reading.fields import ConfigError

_LLAMA = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
LAYERS = {
    "gpt2": ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "llama": _LLAMA,
    "minicpm": _LLAMA,
    "bert": (
        *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
        *("intermediate.dense", "output.dense"),
    ),
}
"""The matrices in one block of each family, by their names in the block. Embeddings and heads get no adapters."""
_QUERIES_AND_VALUES = {"gpt2": ("attn.c_attn",), "bert": ("attention.self.query", "attention.self.value")}
_OF_LLAMA = ("self_attn.q_proj", "self_attn.v_proj")
ALL = "all-linear"
"""The target that stands for all layers; peft has the same word."""


def complete(lora: LoraConfig, family: str | None) -> LoraConfig:
    """``lora`` with a value for every setting; unchanged without adapters, or where the family is not known.

    Targets become the layers' names in the block, in the block's order, so that equal adapters have equal settings.
    Raises ConfigError for a target that the family's blocks do not have.
    """
    if lora.lora_rank is None or family not in LAYERS:
        return lora
    alpha = lora.lora_alpha or 2.0 * lora.lora_rank
    return replace(lora, lora_alpha=alpha, lora_targets=",".join(_layers(lora.lora_targets, family)))


def layers(lora: LoraConfig) -> list[str]:
    """The layers that get adapters, as `complete` names them."""
    return lora.lora_targets.split(",") if lora.lora_targets else []


def row(lora: LoraConfig) -> dict[str, Any]:
    """The fields of a results row about adapters; null without."""
    if lora.lora_rank is None:
        return dict.fromkeys(("lora_rank", "lora_alpha", "lora_targets"))
    return {"lora_rank": lora.lora_rank, "lora_alpha": lora.lora_alpha, "lora_targets": layers(lora)}


def _layers(targets: str | None, family: str) -> list[str]:
    """Names of layers in a block: each target is the whole name of one, or the end of one or more of them."""
    known = LAYERS[family]
    if targets is None:
        return list(_QUERIES_AND_VALUES.get(family, _OF_LLAMA))
    chosen, complaints = set[str](), []
    for target in (name.strip() for name in targets.split(",")):
        meant = {target} & {*known} or {name for name in known if name.endswith(f".{target}")}
        if not (meant := set(known) if target == ALL else meant):
            complaints.append(f"lora_targets: no layer {target!r} in a block of {family}{_hint(target, known)}")
        chosen |= meant
    if complaints:
        raise ConfigError(complaints)
    return [name for name in known if name in chosen]


def _hint(target: str, known: tuple[str, ...]) -> str:
    ends = [name.rpartition(".")[2] for name in known]
    close = difflib.get_close_matches(target, [*known, *ends, ALL], n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"{meant}; there are {', '.join(known)}; or {ALL}"
