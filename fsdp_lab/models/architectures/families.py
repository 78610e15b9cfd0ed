"""The architectures that can be trained: transformers' own modules, and how they differ where the trainer must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertForPreTraining
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from fsdp_lab.models.architectures.config_json import brings_code, read_config_json
from fsdp_lab.models.architectures.minicpm import MiniCPMConfig, MiniCPMForCausalLM


@dataclass(frozen=True)
class Family:
    """One architecture. Body, head and sizes are not here: transformers gives them the same names in all architectures.

    ``blocks``: where the list of blocks is in ``model``. ``no_dropout``: settings that turn dropout off, because these
    runs see each token about once.
    """

    config: type[PreTrainedConfig]
    model: type[PreTrainedModel]
    blocks: str
    no_dropout: Mapping[str, float] = field(default_factory=lambda: {"attention_dropout": 0.0})


_GPT2_DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
_BERT_DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
FAMILIES = {  # by the "model_type" of a config.json
    "gpt2": Family(GPT2Config, GPT2LMHeadModel, "transformer.h", _GPT2_DROPOUT),
    "qwen2": Family(Qwen2Config, Qwen2ForCausalLM, "model.layers"),
    "qwen3": Family(Qwen3Config, Qwen3ForCausalLM, "model.layers"),
    "llama": Family(LlamaConfig, LlamaForCausalLM, "model.layers"),
    "minicpm": Family(MiniCPMConfig, MiniCPMForCausalLM, "model.layers"),
    "bert": Family(BertConfig, BertForPreTraining, "bert.encoder.layer", _BERT_DROPOUT),
}


def family_of(config: PreTrainedConfig) -> Family:
    """The `Family` to which a configuration belongs, by its ``model_type``."""
    return FAMILIES[config.model_type]


def blocks_of(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The transformer blocks in order, by their names in ``model``: the units of sharding, compiling, recomputing."""
    prefix = family_of(model.config).blocks
    return {f"{prefix}.{i}": block for i, block in enumerate(model.get_submodule(prefix))}


def new_config(family: str, **settings: Any) -> PreTrainedConfig:
    """A configuration of a family from ``settings`` as its config.json names them."""
    known = FAMILIES[family]
    return known.config(**{**known.no_dropout, **settings})


def read_config(folder: Path) -> PreTrainedConfig:
    """The configuration of a local Hugging Face folder. ValueError when there is none, or of an unknown architecture.

    Code that a folder brings along (``auto_map``) is never looked at: the architectures are transformers' own.
    """
    saved = read_config_json(folder, "model_dir")
    path, name = folder / "config.json", saved.get("model_type")
    if name not in FAMILIES:
        code = "; the code that comes with the folder (auto_map) is never run" if brings_code(saved) else ""
        known = ", ".join(FAMILIES)
        raise ValueError(f"model_dir: {path} cannot be used: its architecture is {name!r}; known: {known}{code}")
    try:
        config = FAMILIES[name].config.from_pretrained(folder, local_files_only=True, **FAMILIES[name].no_dropout)
    except Exception as error:  # a stranger's file: transformers' checks of it raise any exception
        raise ValueError(f"model_dir: {path} cannot be used: {' '.join(str(error).split())}") from None
    if name == "bert" and (complaint := _about_bert(config)):
        raise ValueError(f"model_dir: {path} cannot be used: {complaint}")
    if hasattr(config, "auto_map"):
        del config.auto_map  # names code that is not copied with the weights
    return config


def _about_bert(config: PreTrainedConfig) -> str:
    """Why a BERT's configuration says something else than what is computed here; empty when it does not."""
    if config.is_decoder or config.add_cross_attention:
        return "is_decoder, add_cross_attention: a BERT that decodes is not a masked model"
    if getattr(config, "position_embedding_type", "absolute") != "absolute":
        return "position_embedding_type: only absolute positions are computed here"
    return "" if config.type_vocab_size >= 2 else "type_vocab_size: two segments want 2 types of tokens"


def logits_divisor(config: PreTrainedConfig) -> float:
    """The number by which logits are divided: 1 for every family but MiniCPM (and Granite, which it is made of)."""
    return float(getattr(config, "logits_scaling", 1.0))
