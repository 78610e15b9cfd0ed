"""From a preset or a saved folder to a sharded model (or to one that virtual ranks share), and back to a folder."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging as transformers_logging

from fsdp_lab.models.adapted import add_adapters, draw_adapters
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.architectures.families import blocks_of, new_config, read_config
from fsdp_lab.models.architectures.flops import flops_per_token
from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.models.model import Model
from fsdp_lab.models.saved.adapters import FOLDER as ADAPTERS, save_adapters
from fsdp_lab.models.saved.weights import SavedWeights, save_folder
from fsdp_lab.models.sketch import Sketch
from fsdp_lab.models.virtual import VirtualModel
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.presets import PRESETS

transformers_logging.disable_progress_bar()

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2", "flex": "flex_attention"}


def build_model(config: TrainConfig, ranks: Ranks, vocab_size: int, eot_id: int, pad_id: int | None = None) -> Model:
    """The model of ``config``, sharded by FSDP2: one unit for each block, one for embeddings, head and last norm.

    It is sharded before it has weights, so that no rank ever holds more than its shards and one whole parameter.
    Virtual ranks share the unsharded model. ``pad_id``: of a tokenizer that has one. Raises ValueError
    for an unusable folder, a vocabulary or context too small for the data, and for an attention kernel that is not
    available here.
    """
    name, hf_config = _configuration(config.model, vocab_size, eot_id, pad_id)
    _check_sizes(config, name, hf_config, vocab_size)
    param_dtype = _param_dtype(config, ranks)
    hf_config._attn_implementation = _attention(config.model.attention, ranks.device, param_dtype)
    saved = SavedWeights(Path(name), config.model.trust_pickle) if config.model.model_dir is not None else None
    if saved is not None:
        saved.check_blocks(hf_config)
    sketch = _sketch(hf_config, config.model)
    if saved is not None:
        saved.check(sketch.model)  # while nothing has memory yet
    num_parameters = sum(p.numel() for p in sketch.model.parameters())
    add_adapters(sketch.model, config.lora, config.model.model_dir)
    module = objective(sketch.model)
    _prepare_blocks(sketch.model, config)
    if not ranks.are_virtual:
        _shard(module, config, ranks, param_dtype)
    sketch.allocate(module, ranks.device, offloaded=config.model.cpu_offload)
    if saved is not None:
        saved.copy_to(sketch.model)
    else:
        sketch.draw(config.run.seed)
    draw_adapters(sketch.model, config.lora, config.run.seed, ranks.rank)
    flops = flops_per_token(sketch.model, config.data.max_length or 0)
    if ranks.are_virtual:
        return VirtualModel(module, name, num_parameters, param_dtype, flops, config)
    return Model(module, name, num_parameters, param_dtype, flops)


def remarks_on_adapters(model: Model, config: TrainConfig, ranks: Ranks) -> Iterator[str]:
    """What a user should know who trains adapters in this way; nothing without adapters."""
    if config.lora.lora_rank is None:
        return
    if config.model.model_dir is None:
        yield (
            f"lora_rank: adapters on random weights ({model.name}) test the system and make no useful model; "
            "--model_dir FOLDER fine-tunes saved weights"
        )
    frozen = [p.numel() for p in model.module.parameters() if not p.requires_grad]
    if ranks.world > 1 and not ranks.are_virtual and not config.comm.fsdp_keep_frozen:
        share = 100 * sum(frozen) / (sum(frozen) + model.row()["trainable_parameters"])
        yield (
            f"{share:.1f} % of the parameters are frozen, and FSDP2 gathers them in every forward and backward; "
            "--fsdp_keep_frozen sends them once, for which every rank keeps "
            f"{sum(frozen) * DTYPES[model.param_dtype].itemsize / 1e6:.1f} MB"
        )


def save_pretrained(model: Model, folder: Path, ranks: Ranks) -> None:
    """Writes the full float32 weights as a Hugging Face folder, merged with adapters, which are in a folder in it too.

    All ranks call this together, rank 0 writes."""
    model.reshard()
    save_folder(model.module.hf, folder, writes=ranks.rank == 0)
    save_adapters(model.module.hf, folder / ADAPTERS, writes=ranks.rank == 0)


def load_pretrained(folder: Path, trust_pickle: bool = False) -> PreTrainedModel:
    """The whole float32 model of a local Hugging Face folder, on the CPU; ValueError says what is wrong with it."""
    config = read_config(folder)
    saved = SavedWeights(folder, trust_pickle)
    saved.check_blocks(config)
    sketch = _sketch_of_folder(config, folder)
    saved.check(sketch.model)
    sketch.allocate(sketch.model, torch.device("cpu"))
    saved.copy_to(sketch.model)
    return sketch.model


def _configuration(
    config: ModelConfig, vocab_size: int, eot_id: int, pad_id: int | None
) -> tuple[str, PreTrainedConfig]:
    if config.model_dir is not None:
        return config.model_dir, read_config(Path(config.model_dir))
    assert config.model is not None, "resolved"
    preset = PRESETS[config.model]
    shape = {**preset.shape, "vocab_size": max(vocab_size, preset.shape.get("vocab_size", 0))}
    if pad_id is not None:
        shape["pad_token_id"] = pad_id
    return config.model, new_config(preset.family, bos_token_id=eot_id, eos_token_id=eot_id, **shape)


def _check_sizes(config: TrainConfig, name: str, hf_config: PreTrainedConfig, vocab_size: int) -> None:
    max_length = config.data.max_length
    assert max_length is not None, "resolved"
    if max_length > hf_config.max_position_embeddings:
        raise ValueError(f"max_length: {max_length} is beyond {name}'s context of {hf_config.max_position_embeddings}")
    if vocab_size > hf_config.vocab_size:
        raise ValueError(
            f"model_dir: the tokenizer of {name} has {vocab_size} ids, the model embeds {hf_config.vocab_size}"
        )


def _attention(name: str, device: torch.device, param_dtype: str) -> str:
    if name in ("flash", "flex") and device.type != "cuda":
        raise ValueError(f"attention: {name} trains on a CUDA device only; give sdpa or eager")
    if name == "flash" and param_dtype == "fp32":
        raise ValueError("attention: flash has no float32; give --mixed_precision bf16, or sdpa")
    return ATTENTION[name]


def _sketch(hf_config: PreTrainedConfig, config: ModelConfig) -> Sketch:
    if config.model_dir is not None and config.attention not in ("flash", "flex"):
        return _sketch_of_folder(hf_config, Path(config.model_dir))
    try:
        return Sketch.of(hf_config)
    except (ImportError, ValueError) as error:  # a package is missing, or sizes do not fit each other
        what = f"attention: {config.attention} is not available"
        raise ValueError(f"{what}: {' '.join(str(error).split())}") from None


def _sketch_of_folder(hf_config: PreTrainedConfig, folder: Path) -> Sketch:
    try:
        return Sketch.of(hf_config)
    except Exception as error:  # sizes that do not fit each other, unknown names: transformers raises any exception
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"model_dir: no model can be built from {folder / 'config.json'}: {what}") from None


def _prepare_blocks(hf: PreTrainedModel, config: TrainConfig) -> None:
    """Sets up activation checkpointing and compilation of every block; no parameter's name changes.

    Checkpointing wraps a block's forward and not the block, so FSDP2's hooks stay outside and gather once.
    """
    for block in blocks_of(hf).values():
        if config.model.activation_checkpointing:  # nothing in a block is random but adapters' dropout
            is_random = config.lora.lora_dropout > 0
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=is_random)
        if config.model.compile:
            block.compile()


def _shard(module: Objective, config: TrainConfig, ranks: Ranks, param_dtype: str) -> None:
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[param_dtype], reduce_dtype=DTYPES[config.comm.comm_dtype])
    offload = CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda") if config.model.cpu_offload else OffloadPolicy()
    options = {"mesh": ranks.mesh, "mp_policy": policy, "offload_policy": offload}
    for block in blocks_of(module.hf).values():
        fully_shard(block, reshard_after_forward=config.comm.fsdp_reshard, **options)
    fully_shard(module, **options)


def _param_dtype(config: TrainConfig, ranks: Ranks) -> str:
    if config.model.mixed_precision == "auto":
        return "bf16" if ranks.device.type == "cuda" else "fp32"
    return "fp32" if config.model.mixed_precision == "no" else config.model.mixed_precision
