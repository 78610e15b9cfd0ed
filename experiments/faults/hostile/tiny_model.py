"""A tiny model folder with a tokenizer and a chat template, as something to spoil."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.utils import logging as transformers_logging

transformers_logging.disable_progress_bar()

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_model(folder: Path, template: str = TEMPLATE) -> Path:
    """A Llama of three blocks that reads bytes (258 tokens), with random weights, in ``folder``."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    torch.manual_seed(0)
    shape = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    LlamaForCausalLM(LlamaConfig(**shape, **heads)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def change(path: Path, **values: Any) -> None:
    """Change values in a JSON file; None removes a key."""
    values_now = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(
        json.dumps({name: value for name, value in values_now.items() if value is not None}), encoding="utf-8"
    )
