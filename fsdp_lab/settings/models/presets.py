"""Named models, with the training settings that suit each where the user gives none."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fsdp_lab.settings import adapters
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.conflicts.all_groups import conflicts
from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.models import shapes
from fsdp_lab.settings.models.model_type import model_type
from fsdp_lab.settings.reading.fields import ConfigError


@dataclass(frozen=True)
class Preset:
    """A model's shape (in the terms of its config.json), and defaults for settings that depend on the model's size.

    ``family``: the config.json's model_type. Random weights are trained with GPT-2's tokenizer, of which ``vocab_size``
    ids are kept (None: all). A shape whose own ``vocab_size`` is missing or smaller gets the tokenizer's.
    """

    max_length: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    max_steps: int | None  # None: one epoch
    shape: Mapping[str, Any] = field(default_factory=dict)
    family: str = "gpt2"
    vocab_size: int | None = None


PRESETS = {
    "gpt2-nano": Preset(128, 4, 4e-3, 60, 320, shapes.GPT2_NANO),
    "gpt2-micro": Preset(128, 4, 2e-3, 60, 400, shapes.GPT2_MICRO, vocab_size=2048),
    "gpt2-mini": Preset(128, 4, 2e-3, 60, 400, shapes.GPT2_MINI, vocab_size=4096),
    "gpt2-10m": Preset(128, 4, 2e-3, 60, 400, shapes.GPT2_10M, vocab_size=8192),
    "gpt2-62m": Preset(512, 16, 1e-3, 100, None, shapes.GPT2_62M),
    "gpt2": Preset(512, 16, 6e-4, 100, None, shapes.GPT2),
    "qwen2-nano": Preset(128, 4, 4e-3, 60, 320, shapes.QWEN2_NANO, "qwen2"),
    "qwen3-nano": Preset(128, 4, 4e-3, 60, 320, shapes.QWEN3_NANO, "qwen3"),
    "llama-nano": Preset(128, 4, 4e-3, 60, 320, shapes.LLAMA_NANO, "llama"),
    "minicpm-nano": Preset(128, 4, 4e-3, 60, 320, shapes.MINICPM_NANO, "minicpm"),
    "llama-mini": Preset(128, 4, 2e-3, 60, 400, shapes.LLAMA_MINI, "llama", vocab_size=4096),
    "llama-60m": Preset(512, 16, 1e-3, 100, None, shapes.LLAMA_60M, "llama"),
    "bert-nano": Preset(128, 4, 2e-3, 60, 320, shapes.BERT_NANO, "bert"),
    "bert-mini": Preset(128, 4, 1e-3, 60, 400, shapes.BERT_MINI, "bert", vocab_size=4096),
    "bert-62m": Preset(512, 16, 5e-4, 100, None, shapes.BERT_62M, "bert"),
    "bert-base": Preset(512, 16, 1e-4, 100, None, shapes.BERT_BASE, "bert"),
    "smollm2-135m": Preset(512, 16, 6e-4, 100, None, shapes.SMOLLM2_135M, "llama"),
    "qwen2.5-0.5b": Preset(512, 8, 4e-4, 100, None, shapes.QWEN2_5_05B, "qwen2"),
    "qwen2.5-1.5b": Preset(512, 4, 3e-4, 100, None, shapes.QWEN2_5_15B, "qwen2"),
    "qwen3-0.6b": Preset(512, 8, 4e-4, 100, None, shapes.QWEN3_06B, "qwen3"),
    "qwen3-1.7b": Preset(512, 4, 3e-4, 100, None, shapes.QWEN3_17B, "qwen3"),
    "qwen3-8b": Preset(512, 2, 3e-4, 100, None, shapes.QWEN3_8B, "qwen3"),
    "llama-3.2-1b": Preset(512, 4, 3e-4, 100, None, shapes.LLAMA_32_1B, "llama"),
    "z2all-1b": Preset(2048, 2, 3e-4, 100, None, shapes.Z2ALL_1B, "llama"),
    "llama-3.1-8b": Preset(512, 2, 3e-4, 100, None, shapes.LLAMA_31_8B, "llama"),
}
_LOADED = Preset(512, 8, 1e-4, 20, None)  # weights from a folder


def unknown_preset(name: str) -> str:
    """The complaint about a preset that does not exist; empty when ``name`` is a preset."""
    if name in PRESETS:
        return ""
    close = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"model: no preset {name!r}{hint}; known: {', '.join(PRESETS)} (or --model_dir for saved weights)"


def family(model: ModelConfig) -> str | None:
    """The family of a model, as config.json's model_type names it: of its preset, or of its folder; None: not known."""
    if model.model_dir is not None:
        return model_type(Path(model.model_dir))
    preset = PRESETS.get(model.model or "gpt2-nano")  # with a GPU another one, of the same family
    return preset.family if preset else None


def resolve(config: TrainConfig, has_gpu: bool) -> TrainConfig:
    """``config`` with a value for every setting: the preset is chosen, and gives its defaults for what is still None.

    max_steps is the preset's only when the user gave neither max_steps nor num_epochs.
    Raises ValueError for an unknown preset, for layers that it does not have, and for settings that exclude each other.
    """
    if complaints := conflicts(config):
        raise ConfigError(complaints)
    model, data, optim = config.model, config.data, config.optim
    if model.model_dir is None:
        name = model.model or ("gpt2-62m" if has_gpu else "gpt2-nano")
        if complaint := unknown_preset(name):
            raise ValueError(complaint)
        preset = PRESETS[name]
        model = replace(model, model=name, vocab_size=model.vocab_size or preset.vocab_size)
    else:
        preset = _LOADED
    steps_open = optim.max_steps is None and optim.num_epochs is None
    return replace(
        config,
        model=model,
        lora=adapters.complete(config.lora, family(model)),
        data=replace(data, max_length=data.max_length or preset.max_length),
        optim=replace(
            optim,
            batch_size=optim.batch_size or preset.batch_size,
            learning_rate=optim.learning_rate or preset.learning_rate,
            warmup_steps=preset.warmup_steps if optim.warmup_steps is None else optim.warmup_steps,
            max_steps=preset.max_steps if steps_open else optim.max_steps,
            num_epochs=optim.num_epochs or 1,
        ),
    )
