"""Trained LoRA adapters as a folder that peft loads."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.adapted import NAME, adapter_parameters
from fsdp_lab.models.shards.sharding import whole

FOLDER = "adapter"
"""The folder beside a model's merged weights."""


def save_adapters(model: PreTrainedModel, folder: Path, writes: bool) -> None:
    """Writes adapters as ``peft.PeftModel.from_pretrained(base, folder)`` reads them; nothing where there are none.

    All ranks of a sharded model call this; one of them ``writes``.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in adapter_parameters(model).items():
        tensor = whole(parameter)
        if writes:
            tensors[f"base_model.model.{name.replace(f'.{NAME}.', '.')}"] = tensor.cpu().contiguous()
    if tensors:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        model.peft_config[NAME].save_pretrained(folder)
