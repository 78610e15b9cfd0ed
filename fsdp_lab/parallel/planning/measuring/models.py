"""The model and the batch that times are taken with: random weights and random tokens, the same on every rank."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.data.batches.masked.masking import num_chosen
from fsdp_lab.models.architectures.families import family_of, new_config
from fsdp_lab.settings.models.masked import MASKED
from fsdp_lab.settings.models.presets import PRESETS

_VOCABULARY = 50257  # GPT-2's tokenizer, where a preset names no other


def whole_model(preset: str, layers: int | None = None) -> PreTrainedModel:
    """The model of a preset with random weights. ``layers``: so many blocks instead of its own number."""
    chosen = PRESETS[preset]
    config = new_config(
        chosen.family, **{**chosen.shape, "vocab_size": vocabulary(preset)}, bos_token_id=0, eos_token_id=0
    )
    config._attn_implementation = "sdpa"
    if layers is not None:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    torch.manual_seed(0)
    return family_of(config).model(config)


def random_batch(preset: str, rows: int, length: int) -> Tensor:
    """Random tokens int64 ``[rows, length]``; for a BERT also types, masks and labels, as its data has them."""
    tokens = torch.randint(vocabulary(preset), (rows, length), generator=torch.Generator().manual_seed(1))
    if PRESETS[preset].family not in MASKED:
        return tokens
    labels = torch.full_like(tokens, IGNORED)
    labels[:, 1 : 1 + num_chosen(length)] = tokens[:, 1 : 1 + num_chosen(length)]
    labels[:, 0] = torch.arange(rows) % 2
    return torch.stack([tokens, (torch.arange(length) >= length // 2).long().expand(rows, length), labels], -1)


def vocabulary(preset: str) -> int:
    """How many words the model of a preset knows."""
    chosen = PRESETS[preset]
    return int(chosen.shape.get("vocab_size") or chosen.vocab_size or _VOCABULARY)
