"""From a preset or a saved folder to a sharded model (or one that virtual ranks share), and back to a folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from transformers.utils import logging as transformers_logging

from fsdp_lab.config import TrainConfig
from fsdp_lab.distributed import Ranks
from fsdp_lab.models.causal_lm import CausalLM
from fsdp_lab.models.model import Model
from fsdp_lab.models.virtual import VirtualModel
from fsdp_lab.presets import PRESETS

transformers_logging.disable_progress_bar()

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_model(config: TrainConfig, ranks: Ranks, vocab_size: int, eot_id: int) -> Model:
    """The model of ``config``, sharded by FSDP2: one unit a block, and the root (embeddings, head, last norm).

    Every rank builds the same weights from the seed (or reads them) and keeps its shard. Virtual ranks share the whole.
    Raises ValueError for an unknown preset, an unusable folder, or a context shorter than max_length.
    """
    name, hf = _load(config, ranks, vocab_size, eot_id)
    max_length = config.data.max_length
    assert max_length is not None, "resolved"
    if max_length > hf.config.n_positions:
        raise ValueError(f"max_length: {max_length} is beyond {name}'s context of {hf.config.n_positions}")
    num_parameters = sum(p.numel() for p in hf.parameters())
    module = CausalLM(hf).to(ranks.device)
    param_dtype = _param_dtype(config, ranks)
    if ranks.are_virtual:
        return VirtualModel(module, name, num_parameters, param_dtype, config)
    blocks = list(hf.transformer.h)
    if config.model.compile:
        for block in blocks:
            block.compile()
    reduce_dtype = DTYPES[config.comm.comm_dtype]
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[param_dtype], reduce_dtype=reduce_dtype)
    for block in blocks:
        fully_shard(block, mesh=ranks.mesh, mp_policy=policy, reshard_after_forward=config.comm.fsdp_reshard)
    fully_shard(module, mesh=ranks.mesh, mp_policy=policy)
    return Model(module, name, num_parameters, param_dtype)


def save_pretrained(model: Model, folder: Path, ranks: Ranks) -> None:
    """Write the full float32 weights as a Hugging Face folder; collective, rank 0 writes."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model.module, options=options)
    if ranks.rank == 0:
        with torch.device("meta"):
            whole = GPT2LMHeadModel(model.module.hf.config)
        named = {key.removeprefix("hf."): value for key, value in weights.items()}
        whole.load_state_dict(named, assign=True)
        whole.tie_weights()
        whole.save_pretrained(folder)


def _load(config: TrainConfig, ranks: Ranks, vocab_size: int, eot_id: int) -> tuple[str, GPT2LMHeadModel]:
    if config.model.model_dir is not None:
        hf = load_pretrained(Path(config.model.model_dir))
        return config.model.model_dir, hf.float()
    name = config.model.model
    assert name is not None, "resolved"
    torch.manual_seed(config.run.seed)
    # Dropout off: these runs see each token about once.
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    special = {"bos_token_id": eot_id, "eos_token_id": eot_id}
    return name, GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, **special, **dropout, **PRESETS[name].shape))


def load_pretrained(folder: Path) -> GPT2LMHeadModel:
    """A GPT-2 from a local Hugging Face folder; ValueError says what is wrong with the folder."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"model_dir: {folder} holds no config.json: not a saved Hugging Face model")
    try:
        return GPT2LMHeadModel.from_pretrained(folder, local_files_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"model_dir: {folder} cannot be loaded as a GPT-2: {error}") from None


def _param_dtype(config: TrainConfig, ranks: Ranks) -> str:
    if config.model.mixed_precision == "auto":
        return "bf16" if ranks.device.type == "cuda" else "fp32"
    return "fp32" if config.model.mixed_precision == "no" else config.model.mixed_precision
