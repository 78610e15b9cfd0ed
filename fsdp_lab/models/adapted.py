"""LoRA adapters in a model's blocks: peft makes them; they are named, drawn and merged here.

Hu et al., arXiv 2106.09685: beside a frozen matrix W there are A ``[r, in]`` and B ``[out, r]``, and the layer computes
``W x + (alpha / r) B A x``. B begins with zeros, so a run begins with the model that it was given. peft puts the matrix
under another name ("c_attn.base_layer.weight"); everyone who reads or writes weights asks `plain_parameters` instead.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.architectures.families import blocks_of, family_of
from fsdp_lab.models.shards.sharding import held, whole
from fsdp_lab.settings import adapters
from fsdp_lab.settings.groups import LoraConfig

NAME = "default"
"""What peft calls the only adapter of a model."""
_OF_ADAPTERS = re.compile(r"\.lora_[AB]\.")


def add_adapters(model: PreTrainedModel, lora: LoraConfig, base: str | None) -> None:
    """Freezes ``model``, which may be on the meta device, and puts adapters without values into its blocks.

    Nothing is done without ``lora_rank``. ``base``: the folder of the weights, for whoever loads the saved adapters.
    Raises ValueError where a matrix is too small for the rank, and where peft is not installed.
    """
    if lora.lora_rank is None:
        return
    try:
        from peft import LoraConfig as PeftConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError(f"lora_rank: {error}; pip install 'fsdp-comm-compress[lora]'") from None
    layers = adapters.layers(lora)
    _check_rank(model, lora.lora_rank, layers)
    is_gpt2 = model.config.model_type == "gpt2"
    config = PeftConfig(
        r=lora.lora_rank,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=rf"{re.escape(family_of(model.config).blocks)}\.\d+\.({'|'.join(map(re.escape, layers))})",
        fan_in_fan_out=is_gpt2,  # its Conv1D holds matrices as [in, out]
        task_type="CAUSAL_LM" if model.can_generate() else None,
        base_model_name_or_path=base,
    )
    inject_adapter_in_model(config, model, NAME, low_cpu_mem_usage=True)


def draw_adapters(model: PreTrainedModel, lora: LoraConfig, seed: int, rank: int) -> None:
    """Gives adapters the values that LoRA begins with: the same ones on every rank and at every world size.

    As peft draws them: A uniform with bound ``1 / sqrt(in)``, B zero; but from a generator of their own, so that the
    model's random weights are those that it has without adapters. Where inputs are dropped, torch's global generator
    is set, to another seed on each ``rank``.
    """
    generator = torch.Generator().manual_seed(_derived(seed, "adapters"))
    for name, parameter in adapter_parameters(model).items():
        values = torch.zeros(parameter.shape)
        if ".lora_A." in name:
            nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)
        held(parameter).fill(values)
    if lora.lora_rank is not None and lora.lora_dropout > 0:
        torch.manual_seed(_derived(seed, f"dropout of rank {rank}"))


def plain_name(name: str) -> str:
    """The name that a tensor of the model has where there are no adapters."""
    return name.replace(".base_layer.", ".")


def plain_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's own parameters, without those of adapters, by the names that they have where there are none."""
    return {plain_name(name): p for name, p in model.named_parameters() if not _OF_ADAPTERS.search(name)}


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of all adapters, by their names in the model; empty where there are none."""
    return {name: p for name, p in model.named_parameters() if _OF_ADAPTERS.search(name)}


def additions(model: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """What the adapters of each matrix add to it, by `plain_name`, in its shape and in float32.

    A sharded model's ranks call each of these functions together.
    """
    adapted = {name: m for name, m in model.named_modules() if hasattr(m, "lora_A") and hasattr(m, "base_layer")}
    return {plain_name(f"{name}.weight"): partial(_added, module) for name, module in adapted.items()}


def _added(module: Any) -> Tensor:
    down, up = whole(module.lora_A[NAME].weight), whole(module.lora_B[NAME].weight)
    product: Tensor = (up @ down) * module.scaling[NAME]
    return product.T if module.fan_in_fan_out else product


def _check_rank(model: PreTrainedModel, rank: int, layers: list[str]) -> None:
    block = next(iter(blocks_of(model).values()))
    for name in layers:
        smaller = min(block.get_parameter(f"{name}.weight").shape)
        if rank > smaller:
            raise ValueError(f"lora_rank: {rank} is more than {name} has itself: its smaller side is {smaller}")


def _derived(seed: int, purpose: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{purpose}: {seed}".encode()).digest()[:7])
