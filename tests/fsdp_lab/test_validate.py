"""The perplexity of a saved model does not depend on how it is computed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from fsdp_lab import validate
from fsdp_lab.data import load_tokenizer
from fsdp_lab.settings.groups import DataConfig
from fsdp_lab.settings.models.saved import ValidateConfig, ValidateSettings
from fsdp_lab.training.evaluate import Evaluation


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("validate") / "model"
    torch.manual_seed(3)
    tokenizer = load_tokenizer(vocab_size=300)
    shape = GPT2Config(vocab_size=300, n_positions=32, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5)
    GPT2LMHeadModel(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": f"Ice is water, said number {i}. " * 9}) + "\n" for i in range(12)))
    return path


def test_the_result_is_the_same_whatever_the_batch_size(model: Path, text: Path) -> None:
    data = DataConfig(data_path=str(text), max_length=32, val_fraction=0.5, cache_dir=str(text.parent))

    def of(size: int) -> Evaluation:
        return validate.validate(ValidateConfig(ValidateSettings(str(model), batch_size=size), data))

    found = [of(size) for size in (8, 1, 7, 999)]
    assert found[0].tokens > 8 * 31
    assert len({result.tokens for result in found}) == 1
    for result in found[1:]:
        assert result.loss == pytest.approx(found[0].loss, rel=1e-6)


def test_the_flag_is_that_of_training(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for size in ("--batch_size", "--batch-size"):
        flags = ["--model-dir", str(model), size, "3", "--max_length", "32", "--val_fraction", "0.5"]
        assert validate.main([*flags, "--cache_dir", str(text.parent), "--data_path", str(text)]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert re.match(r"validation loss \d+\.\d+, PPL ", said[0])


def test_a_runs_own_settings_give_way_to_flags_however_written(model: Path) -> None:
    (model.parent / "config.yaml").write_text("max_length: 16\nval_fraction: 0.25\ndata_path: null\n")
    try:
        for flag in ("--max-length", "--max_length"):
            words = ["--model_dir", str(model), flag, "32"]
            config = ValidateConfig(ValidateSettings(str(model)), DataConfig(max_length=32))
            found = validate.of_the_run(config, words).data
            assert (found.max_length, found.val_fraction) == (32, 0.25)
    finally:
        (model.parent / "config.yaml").unlink()
