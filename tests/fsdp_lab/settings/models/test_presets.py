"""What a preset fills in, and what it leaves alone."""

from __future__ import annotations

import pytest

from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.models.presets import resolve
from fsdp_lab.settings.reading.fields import ConfigError


def vocab_size(**flags: object) -> int | None:
    return resolve(TrainConfig.of(**flags), has_gpu=False).model.vocab_size


def test_the_vocabulary_is_the_flag_s_then_the_preset_s_then_gpt2_s_whole() -> None:
    assert vocab_size(model="gpt2-mini", vocab_size=1000) == 1000
    assert vocab_size(model="gpt2-mini") == vocab_size(model="llama-mini") == 4096
    assert vocab_size(model="gpt2-nano") is None


def test_a_folder_brings_its_own_tokenizer() -> None:
    assert vocab_size(model_dir="saved/model") is None
    with pytest.raises(ConfigError, match="vocab_size"):
        vocab_size(model_dir="saved/model", vocab_size=1000)


@pytest.mark.parametrize("wrong", [256, 50258])
def test_there_is_no_such_vocabulary(wrong: int) -> None:
    with pytest.raises(ConfigError, match="vocab_size"):
        TrainConfig.of(vocab_size=wrong)
