"""Models before they have weights: their sizes, and what they cost."""

from __future__ import annotations

import pytest

from fsdp_lab.models.architectures.families import blocks_of, new_config
from fsdp_lab.models.architectures.flops import flops_per_token, multiplying_parameters
from fsdp_lab.models.sketch import Sketch
from fsdp_lab.settings.models.presets import PRESETS
from tests.fsdp_lab.models.tiny import TINY, tiny_config

PUBLISHED = {  # parameters that the models' own pages on the Hugging Face hub count in their safetensors
    "gpt2": 124_439_808,
    "bert-base": 110_106_428,
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-8b": 8_190_735_360,
    "llama-3.2-1b": 1_235_814_400,
    "z2all-1b": 1_255_499_776,
    "llama-3.1-8b": 8_030_261_248,
}


def sketch(name: str) -> Sketch:
    preset = PRESETS[name]
    return Sketch.of(new_config(preset.family, **{"vocab_size": 50257, **preset.shape}))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_published_sizes_and_no_weights(name: str) -> None:
    found = sketch(name)
    parameters = list(found.model.parameters())
    if name in PUBLISHED:
        assert sum(p.numel() for p in parameters) == PUBLISHED[name]
    else:
        assert name.endswith(("-nano", "-micro", "-mini", "-10m", "-60m", "-62m"))
    assert all(p.is_meta for p in parameters if p.dim() > 1), "vectors alone take memory"
    assert {fill.name for fill in found.fills if fill.name} | found.small.keys() >= {
        name for name, _ in found.model.named_parameters()
    }


def test_heads_and_positions_come_from_the_configuration() -> None:
    config = sketch("llama-3.2-1b").model.config
    assert (config.head_dim, config.rope_parameters["rope_type"], config.rope_parameters["rope_theta"]) == (
        64,
        "llama3",
        5e5,
    )
    assert sketch("qwen3-0.6b").model.get_submodule("model.layers.0.self_attn.q_proj").out_features == 2048


@pytest.mark.parametrize("name", TINY)
def test_blocks_are_found_in_order_by_their_names(name: str) -> None:
    model = Sketch.of(tiny_config(name)).model
    prefix = "transformer.h" if name == "gpt2" else "model.layers"
    assert list(blocks_of(model)) == [f"{prefix}.0", f"{prefix}.1"]
    assert all(model.get_submodule(key) is block for key, block in blocks_of(model).items())


def test_flops_of_a_gpt2_by_hand() -> None:
    model = Sketch.of(new_config("gpt2", vocab_size=7, n_embd=4, n_layer=3, n_head=2, n_positions=16)).model
    block = (4 * 12 + 12) + (4 * 4 + 4) + (4 * 16 + 16) + (16 * 4 + 4) + 4 * 4  # attention, its output, MLP, two norms
    assert multiplying_parameters(model) == 3 * block + 8 + 7 * 4  # blocks, the last norm, the (tied) head; no wte, wpe
    assert flops_per_token(model, max_length=10) == 6 * (3 * block + 8 + 28) + 12 * 3 * 2 * 2 * 10


def test_flops_count_an_untied_head_once_and_heads_by_their_own_width() -> None:
    shape = {"hidden_size": 8, "intermediate_size": 5, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = new_config("qwen3", vocab_size=11, num_key_value_heads=1, head_dim=6, tie_word_embeddings=False, **shape)
    model = Sketch.of(config).model
    block = 8 * 12 + 2 * 8 * 6 + 12 * 8 + 3 * 8 * 5 + 2 * 6 + 2 * 8  # q; k, v; o; MLP; norms of heads; norms
    assert multiplying_parameters(model) == block + 8 + 11 * 8
    assert flops_per_token(model, max_length=4) == 6 * (block + 8 + 88) + 12 * 1 * 2 * 6 * 4
