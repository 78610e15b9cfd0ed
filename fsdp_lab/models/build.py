"""From a preset or a saved folder to a sharded model (or to one that virtual ranks share), and back to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging as transformers_logging

from fsdp_lab.models.adapted import add_adapters, draw_adapters
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.architectures.families import blocks_of, new_config, read_config
from fsdp_lab.models.architectures.flops import flops_per_token
from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.models.model import Model
from fsdp_lab.models.operators import choices_for, install
from fsdp_lab.models.operators.blocks import compile_whole
from fsdp_lab.models.saved.adapters import FOLDER as ADAPTERS, save_adapters
from fsdp_lab.models.saved.weights import SavedWeights, save_folder
from fsdp_lab.models.sketch import Sketch
from fsdp_lab.models.virtual.local_steps import VirtualLocalModel
from fsdp_lab.models.virtual.ranks import VirtualModel
from fsdp_lab.models.virtual.replicas import VirtualReplicaModel
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import LoraConfig, ModelConfig
from fsdp_lab.settings.models.presets import PRESETS

transformers_logging.disable_progress_bar()

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_model(config: TrainConfig, ranks: Ranks, vocab_size: int, eot_id: int, pad_id: int | None = None) -> Model:
    """The model of ``config``, sharded by FSDP2: one unit for each block, one for embeddings, head and last norm.

    It is sharded before it has weights, so that no rank ever holds more than its shards and one whole parameter.
    Virtual ranks share the unsharded model. ``pad_id``: of a tokenizer that has one. Raises ValueError
    for an unusable folder, a vocabulary or context too small for the data, and for operators that are not available
    here.
    """
    plan = plan_model(config, ranks, vocab_size, eot_id, pad_id)
    module = objective(plan.sketch.model)
    is_random = config.lora.lora_dropout > 0
    install(module, plan.operators, is_random, hooks_change=ranks.are_virtual)
    if not ranks.are_virtual:
        shard(module, config, ranks.mesh, plan.param_dtype)
    compile_whole(module, plan.operators)
    plan.realise(module, ranks.device, offloaded=config.model.cpu_offload)
    if ranks.are_virtual:
        return _played_by(config)(module, *plan.described, config=config)
    return Model(module, *plan.described)


def _played_by(config: TrainConfig) -> type[VirtualModel] | type[VirtualReplicaModel] | type[VirtualLocalModel]:
    """What plays virtual ranks: one model that all share, or replicas that exchange something else than gradients."""
    if config.comm.outer != "none":
        return VirtualLocalModel
    return VirtualReplicaModel if config.optim.is_between_replicas else VirtualModel


@dataclass
class ModelPlan:
    """A model without memory, and where its weights will come from: ``saved`` ones, or the ``seed``.

    ``source``: the name in ``saved`` of every parameter. Adapters are drawn as ``lora`` says, on ``rank``.
    """

    name: str
    sketch: Sketch
    param_dtype: str
    num_parameters: int
    flops_per_token: float | None
    operators: dict[str, str]
    start_digest: str | None
    seed: int
    saved: SavedWeights | None
    source: Mapping[str, str]
    lora: LoraConfig
    rank: int

    @property
    def described(self) -> tuple[str, int, str, float | None, dict[str, str], str | None]:
        """What a `Sharded` model says of itself."""
        known = self.name, self.num_parameters, self.param_dtype, self.flops_per_token
        return *known, self.operators, self.start_digest

    def realise(self, module: nn.Module, device: torch.device, offloaded: bool = False) -> None:
        """Gives ``module``, which holds the model or this process's part of it, memory and weights."""
        self.sketch.allocate(module, device, offloaded=offloaded)
        if self.saved is not None:
            self.saved.copy_to(self.sketch.held(), self.source)
        else:
            self.sketch.draw(self.seed)
        draw_adapters(self.sketch.model, self.lora, self.seed, self.rank)


def plan_model(config: TrainConfig, ranks: Ranks, vocab_size: int, eot_id: int, pad_id: int | None) -> ModelPlan:
    """The model of ``config``, not yet sharded or divided. Raises ValueError as `build_model`."""
    name, hf_config = _configuration(config.model, vocab_size, eot_id, pad_id)
    _check_sizes(config, name, hf_config, vocab_size)
    param_dtype = _param_dtype(config, ranks)
    operators = choices_for(hf_config, config.model, ranks.device, param_dtype)
    saved = SavedWeights(Path(name), config.model.trust_pickle) if config.model.model_dir is not None else None
    if saved is not None:
        saved.check_blocks(hf_config)
    sketch = _sketch(hf_config, config.model, operators["attention"])
    source = {} if saved is None else saved.check(sketch.model)  # while nothing has memory yet
    num_parameters = sum(p.numel() for p in sketch.model.parameters())
    add_adapters(sketch.model, config.lora, config.model.model_dir)
    flops = flops_per_token(sketch.model, config.data.max_length or 0)
    start = saved.digest() if saved is not None and ranks.is_first else None  # for the row, which that rank writes
    drawn = config.run.seed, saved, source, config.lora, ranks.rank
    return ModelPlan(name, sketch, param_dtype, num_parameters, flops, operators, start, *drawn)


def save_pretrained(model: Model, folder: Path, ranks: Ranks) -> None:
    """Writes the full float32 weights as a Hugging Face folder, merged with adapters, which are in a folder in it too.

    All ranks call this together, rank 0 writes."""
    model.reshard()
    save_folder(model.module.hf, folder, ranks.rank == 0, model.whole_weights())
    save_adapters(model.module.hf, folder / ADAPTERS, writes=ranks.rank == 0)


def load_pretrained(folder: Path, trust_pickle: bool = False) -> PreTrainedModel:
    """The whole float32 model of a local Hugging Face folder, on the CPU; ValueError says what is wrong with it."""
    config = read_config(folder)
    saved = SavedWeights(folder, trust_pickle)
    saved.check_blocks(config)
    sketch = _sketch_of_folder(config, folder)
    source = saved.check(sketch.model)
    sketch.allocate(sketch.model, torch.device("cpu"))
    saved.copy_to(sketch.held(), source)
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


def _sketch(hf_config: PreTrainedConfig, config: ModelConfig, attention: str) -> Sketch:
    if config.model_dir is not None and attention not in ("flash", "flex"):
        return _sketch_of_folder(hf_config, Path(config.model_dir))
    try:
        return Sketch.of(hf_config)
    except (ImportError, ValueError) as error:  # a package is missing, or sizes do not fit each other
        what = f"attention: {attention} is not available"
        raise ValueError(f"{what}: {' '.join(str(error).split())}") from None


def _sketch_of_folder(hf_config: PreTrainedConfig, folder: Path) -> Sketch:
    try:
        return Sketch.of(hf_config)
    except Exception as error:  # sizes that do not fit each other, unknown names: transformers raises any exception
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"model_dir: no model can be built from {folder / 'config.json'}: {what}") from None


def shard(module: Objective, config: TrainConfig, mesh: DeviceMesh, param_dtype: str) -> None:
    """Shards ``module`` by FSDP2 over ``mesh``, whose last dimension of two shards each of the copies of the first."""
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[param_dtype], reduce_dtype=DTYPES[config.comm.comm_dtype])
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if config.model.cpu_offload else OffloadPolicy()
    options = {"mesh": mesh, "mp_policy": policy, "offload_policy": offload}
    for block in blocks_of(module.hf).values():
        fully_shard(block, reshard_after_forward=config.comm.fsdp_reshard, **options)
    fully_shard(module, **options)


def _param_dtype(config: TrainConfig, ranks: Ranks) -> str:
    if config.model.mixed_precision == "auto":
        return "bf16" if ranks.device.type == "cuda" else "fp32"
    return "fp32" if config.model.mixed_precision == "no" else config.model.mixed_precision
