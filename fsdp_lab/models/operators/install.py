"""Which implementation of each operator a model gets here, and how they are put in place."""

from __future__ import annotations

import re

import torch
from transformers.configuration_utils import PreTrainedConfig

from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.models.operators import attention, blocks, cross_entropy, gelu, layer_norm, rms_norm, rope, swiglu
from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.operators import Facts, choose

_PARTS = {"rope": rope, "rms_norm": rms_norm, "layer_norm": layer_norm, "swiglu": swiglu, "gelu": gelu}


def choices_for(
    hf_config: PreTrainedConfig, config: ModelConfig, device: torch.device, param_dtype: str
) -> dict[str, str]:
    """The implementation of each operator that the model of ``hf_config`` has, and its attention set in ``hf_config``.

    ``param_dtype``: "fp32", "bf16" or "fp16". ValueError for what was named and cannot be had here, with the reason.
    """
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    facts = Facts(hf_config.model_type, device.type, param_dtype, (version[0], version[1]))
    choices = choose(config, facts)
    for name in ("swiglu", "gelu"):
        if name in choices and not _PARTS[name].fits(hf_config):
            if name in config.operators:
                raise ValueError(f"operators: {name}: the model computes {hf_config.hidden_act} there; leave it out")
            del choices[name]
    attention.set_in(hf_config, choices["attention"])
    return choices


def install(module: Objective, choices: dict[str, str], is_random: bool = False, hooks_change: bool = False) -> None:
    """Puts ``choices`` in place in a model that is not sharded yet: all but AdamW's, and but what `compile_whole` does.

    An implementation that the model has by itself is left alone, so the defaults change nothing. ``is_random``: are
    random numbers drawn in blocks, for the dropout of adapters? ``hooks_change``: as `blocks.install` takes it.
    """
    for name, part in _PARTS.items():
        if name in choices:
            part.install(module.hf, choices[name])
    cross_entropy.install(module, choices["cross_entropy"])
    recomputes, compiles = choices["checkpointing"] == "blocks", choices["compile"] == "blocks"
    blocks.install(module.hf, recomputes, compiles, is_random, hooks_change=hooks_change)
