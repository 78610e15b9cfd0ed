"""Targets of every family with random weights and a few hundred parameters a layer, and drafts for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.models.architectures.minicpm import MiniCPMConfig, MiniCPMForCausalLM

VOCABULARY, DRAFT_VOCABULARY, CONTEXT, HIDDEN = 61, 40, 64, 32
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
}
_MINICPM = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": HIDDEN / 6, "tie_word_embeddings": False}
_GPT2 = {
    "n_embd": HIDDEN,
    "n_layer": 7,
    "n_head": 4,
    "n_positions": CONTEXT,
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FAMILIES = ("llama", "qwen2", "qwen3", "minicpm4", "gpt2")


def tiny_target(family: str, dtype: torch.dtype = torch.float64, seed: int = 0, **changed: Any) -> Target:
    """``changed``: other sizes than `_SHAPE`'s."""
    torch.manual_seed(seed)
    shape = _SHAPE | changed
    match family:
        case "llama":
            hf = LlamaForCausalLM(
                LlamaConfig(**{"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}} | shape)
            )
        case "qwen2":
            hf = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True))
        case "qwen3":
            hf = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=12))
        case "minicpm4":
            hf = MiniCPMForCausalLM(MiniCPMConfig(**{**shape, **_MINICPM}))
        case "gpt2":
            hf = GPT2LMHeadModel(GPT2Config(**_GPT2, initializer_range=0.3))
        case _:
            raise AssertionError(family)
    return Target(hf.to(dtype))


def some_vocabulary(target_size: int = VOCABULARY, draft_size: int = DRAFT_VOCABULARY) -> Vocabulary:
    generator = torch.Generator().manual_seed(0)
    return Vocabulary.of(torch.randperm(target_size, generator=generator)[:draft_size], target_size)


def tiny_draft(target: Target, vocabulary: Vocabulary | None = None, seed: int = 1) -> Draft:
    """Random, norms too, so that nothing is right by being one."""
    draft = Draft.fresh(target, vocabulary or some_vocabulary(), seed).to(target.head.dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if "norm" in name:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
            else:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return draft


def prompts(count: int, seed: int = 0, lengths: tuple[int, ...] = (1, 4, 9, 12)) -> list[list[int]]:
    """``count`` of them, in turn of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (lengths[i % len(lengths)],), generator=generator).tolist() for i in range(count)]


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer(template: str = CHATML) -> Any:
    """One token a byte, and ChatML's two marks: 258."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    return tokenizer


def save_target(folder: Path) -> Path:
    """A tiny Llama that reads bytes, as a folder."""
    tokenizer = byte_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 256, "num_hidden_layers": 3}
    tiny_target("llama", torch.float32, **sizes).hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
