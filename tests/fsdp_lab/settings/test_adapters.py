"""LoRA's settings: which layers a target means, what is filled in, and what is refused before ranks start."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from transformers.pytorch_utils import Conv1D

from fsdp_lab import extras
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.models.architectures.families import FAMILIES, blocks_of, new_config
from fsdp_lab.models.sketch import Sketch
from fsdp_lab.settings import adapters
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import LoraConfig
from fsdp_lab.settings.models.presets import PRESETS, resolve
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing.early import checked


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_are_all_matrices_of_a_block(family: str) -> None:
    shape = next(preset.shape for preset in PRESETS.values() if preset.family == family)
    model = Sketch.of(new_config(family, **{**shape, "vocab_size": 300, "bos_token_id": 1, "eos_token_id": 1})).model
    for block in blocks_of(model).values():
        matrices = [name for name, module in block.named_modules() if isinstance(module, nn.Linear | Conv1D)]
        assert sorted(matrices) == sorted(adapters.LAYERS[family])
    chosen = adapters.layers(adapters.complete(LoraConfig(lora_rank=1), family))
    assert {*chosen} < {*adapters.LAYERS[family]}, "what is taken without a word is there"
    assert chosen


@pytest.mark.parametrize(
    ("family", "targets", "meant"),
    [
        ("gpt2", "c_proj", "attn.c_proj,mlp.c_proj"),
        ("gpt2", "mlp.c_proj, c_attn,c_attn", "attn.c_attn,mlp.c_proj"),
        ("llama", "v_proj,q_proj", "self_attn.q_proj,self_attn.v_proj"),
        ("bert", "output.dense", "output.dense"),  # a whole name, although another one ends like it
        ("bert", "dense", "attention.output.dense,intermediate.dense,output.dense"),
        ("qwen3", "all-linear", ",".join(adapters.LAYERS["qwen3"])),
    ],
)
def test_a_target_is_a_layer_or_the_end_of_some(family: str, targets: str, meant: str) -> None:
    full = adapters.complete(LoraConfig(lora_rank=4, lora_targets=targets), family)
    assert (full.lora_targets, full.lora_alpha) == (meant, 8.0)
    assert adapters.complete(full, family) == full


def test_equal_adapters_have_equal_settings_and_rows_say_them() -> None:
    said = resolve(TrainConfig.of(lora_rank=4, lora_alpha=8, lora_targets="c_attn"), has_gpu=False)
    unsaid = resolve(TrainConfig.of(lora_rank=4), has_gpu=False)
    assert said == unsaid
    assert said.digest() == unsaid.digest()
    fields = {"lora_rank": 4, "lora_alpha": 8.0, "lora_targets": ["attn.c_attn"]}
    assert fields.items() <= said.row().items()
    without = resolve(TrainConfig.of(), has_gpu=False).row()
    assert [without[name] for name in fields] == [None] * 3


def refused(*flags: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        checked(TrainConfig, flags)
    return error.value.complaints


def test_what_makes_no_sense_is_refused_early_with_one_message() -> None:
    assert refused("--lora_rank", "0") == [
        "--lora_rank: got '0' on the command line, wants a whole number, at least 1 (or none)"
    ]
    there = f"; there are {', '.join(adapters.LAYERS['gpt2'])}; or all-linear"
    wrong = ["--lora_rank", "2", "--lora_targets"]
    assert refused(*wrong, "q_proj,c_fc") == [
        f"lora_targets: no layer 'q_proj' in a block of gpt2 (did you mean c_proj?){there}"
    ]
    assert refused(*wrong, "wte", "--model", "gpt2-mini") == [f"lora_targets: no layer 'wte' in a block of gpt2{there}"]
    assert refused("--lora_alpha", "3", "--lora_targets", "c_fc") == [
        "lora_alpha, lora_targets: there are no adapters without lora_rank; give it"
    ]
    assert refused("--fsdp_keep_frozen") == ["fsdp_keep_frozen: no weight is frozen without lora_rank; leave it out"]
    played = refused("--lora_rank", "2", "--virtual_ranks", "2", "--fsdp_keep_frozen", "--lora_dropout", "0.5")
    assert [complaint.partition(":")[0] for complaint in played] == ["lora_dropout", "fsdp_keep_frozen"]


def test_a_saved_models_family_decides(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    flags = ["--model_dir", str(tmp_path), "--lora_rank", "2", "--lora_targets"]
    assert "in a block of bert" in refused(*flags, "c_attn")[0]
    assert checked(TrainConfig, [*flags, "key"]).lora.lora_targets == "key"


def test_drafts_have_no_adapters() -> None:
    with pytest.raises(ConfigError) as error:
        checked(EagleConfig, ["--lora-rank", "8", "--target_dir", "/", "--data_path", __file__])
    why = "a draft is small and is trained whole, without adapters; leave it out"
    assert error.value.complaints == [f"--lora-rank: no such flag; {why}"]
    with pytest.raises(ConfigError, match="fsdp_keep_frozen: every rank would keep the target whole"):
        checked(EagleConfig, ["--fsdp_keep_frozen", "--target_dir", "/", "--data_path", __file__])


def test_drafts_take_no_local_steps() -> None:
    with pytest.raises(ConfigError, match="outer: the ranks of a draft take every step together"):
        checked(EagleConfig, ["--outer", "diloco", "--target_dir", "/", "--data_path", __file__])


def test_a_missing_package_is_said_before_ranks_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda package: None if package == "peft" else package)
    assert refused("--lora_rank", "2") == ["lora_rank: peft is not installed: pip install 'fsdp-comm-compress[lora]'"]
    assert checked(TrainConfig, []).lora.lora_rank is None
