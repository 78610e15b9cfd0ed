"""Shapes of models, in the terms of their config.json; nothing here needs torch.

The published shapes are those of the config.json in the Hugging Face repository that the comment names. Sizes that are
left out are transformers' defaults for the architecture, with which the models were published.
"""

from __future__ import annotations

from typing import Any

Shape = dict[str, Any]


def _gpt2(width: int, layers: int, heads: int) -> Shape:
    return {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 1024}


def _modern(
    width: int,
    inner: int,
    layers: int,
    heads: tuple[int, int],
    vocabulary: int | None,
    context: int,
    theta: float,
    eps: float,
    tied: bool,
    **more: Any,
) -> Shape:
    """A Llama-like model. ``heads``: of queries, and of keys and values. ``vocabulary`` None: the tokenizer's."""
    shape = {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "max_position_embeddings": context,
        "rope_theta": theta,
        "rms_norm_eps": eps,
        "tie_word_embeddings": tied,
        **more,
    }
    return shape if vocabulary is None else {**shape, "vocab_size": vocabulary}


def _llama3_positions(factor: float) -> Shape:
    """Rotary positions stretched from the 8,192 that the model was first trained with."""
    return {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    }


def _bert(width: int, layers: int, heads: int, positions: int = 512) -> Shape:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": positions,
    }


GPT2_NANO = _gpt2(96, 4, 4)  # 5.4 million parameters, 4.8 of them GPT-2's vocabulary: minutes on a laptop's CPU
# 2.6 million parameters with its preset's vocabulary of 4,096, which takes 30 % of them: in GPT-2 small it is 31 %, so
# a method meets the same kinds of tensors in the same proportions.
GPT2_MINI = {**_gpt2(192, 4, 6), "n_positions": 256}
# smaller and larger than GPT2_MINI, with as large a share of vocabulary: what a cost is measured against size with
GPT2_MICRO = {**_gpt2(96, 4, 3), "n_positions": 256}  # 0.67 million parameters with 2,048 ids
GPT2_10M = {**_gpt2(320, 6, 5), "n_positions": 256}  # 10.1 million with 8,192 ids
GPT2_62M = _gpt2(640, 6, 10)  # 62.3 million parameters
GPT2 = _gpt2(768, 12, 12)  # openai-community/gpt2
# as many blocks, heads and as wide as GPT2_NANO, with half the heads of keys and values
QWEN2_NANO = _modern(96, 256, 4, (4, 2), None, 1024, 1e6, 1e-6, True)
QWEN3_NANO = _modern(96, 256, 4, (4, 2), None, 1024, 1e6, 1e-6, True, head_dim=32)
LLAMA_NANO = _modern(96, 256, 4, (4, 2), None, 1024, 5e5, 1e-5, True)
LLAMA_MINI = _modern(192, 512, 4, (6, 2), None, 1024, 5e5, 1e-5, True)  # GPT2_MINI's likeness
# LLAMA_NANO with MiniCPM4's factors: its scale_emb and scale_depth, and logits divided by 4 as in MiniCPM4-0.5B
MINICPM_NANO = {**LLAMA_NANO, "scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 24}
BERT_NANO = _bert(96, 4, 4)  # the likeness of GPT2_NANO, GPT2_MINI and GPT2_62M, with BERT's shorter context
BERT_MINI = _bert(192, 4, 6, 256)
BERT_62M = _bert(640, 6, 10)
BERT_BASE = {**_bert(768, 12, 12), "vocab_size": 30522}  # google-bert/bert-base-uncased
QWEN2_5_05B = _modern(896, 4864, 24, (14, 2), 151936, 32768, 1e6, 1e-6, True)  # Qwen/Qwen2.5-0.5B
QWEN2_5_15B = _modern(1536, 8960, 28, (12, 2), 151936, 131072, 1e6, 1e-6, True)  # Qwen/Qwen2.5-1.5B
QWEN3_06B = _modern(1024, 3072, 28, (16, 8), 151936, 40960, 1e6, 1e-6, True, head_dim=128)  # Qwen/Qwen3-0.6B
QWEN3_17B = _modern(2048, 6144, 28, (16, 8), 151936, 40960, 1e6, 1e-6, True, head_dim=128)  # Qwen/Qwen3-1.7B
QWEN3_8B = _modern(4096, 12288, 36, (32, 8), 151936, 40960, 1e6, 1e-6, False, head_dim=128)  # Qwen/Qwen3-8B
LLAMA_32_1B = _modern(  # meta-llama/Llama-3.2-1B
    2048, 8192, 16, (32, 8), 128256, 131072, 5e5, 1e-5, True, head_dim=64, **_llama3_positions(32.0)
)
LLAMA_31_8B = _modern(  # meta-llama/Llama-3.1-8B
    4096, 14336, 32, (32, 8), 128256, 131072, 5e5, 1e-5, False, **_llama3_positions(8.0)
)
LLAMA_60M = _modern(640, 1792, 6, (10, 5), None, 1024, 5e5, 1e-5, True)  # GPT2_62M's likeness
SMOLLM2_135M = _modern(  # HuggingFaceTB/SmolLM2-135M
    576, 1536, 30, (9, 3), 49152, 8192, 1e5, 1e-5, True, initializer_range=0.041666666666666664
)
# Gstdioh/llm-zero2all: 1,255,499,776 parameters in Llama 2's form; published times of it: docs/trainer/operators.md
Z2ALL_1B = _modern(2048, 5632, 22, (32, 8), 64320, 2048, 1e4, 1e-5, False)
