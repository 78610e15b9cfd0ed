"""What cannot be trained on conversations is refused before any rank starts, with the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.models.saved import ValidateConfig
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing.early import checked

ASKED = ["--data_format", "conversations"]


def refused(flags: list[str]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        checked(TrainConfig, [*ASKED, *flags])
    return error.value.complaints


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    path.write_text("{}")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "chat_template.jinja").write_text("x")
    return folder


def test_a_file_and_a_folder_with_a_template_are_taken(talks: Path, model: Path) -> None:
    flags = [*ASKED, "--data_path", str(talks), "--model_dir", str(model)]
    assert checked(TrainConfig, flags).data.data_format == "conversations"
    assert checked(ValidateConfig, flags).validate.model_dir == str(model)
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    assert checked(TrainConfig, flags).model.model_dir == str(model)


def test_no_file_no_folder_or_a_mix_are_refused_together(talks: Path, model: Path) -> None:
    no_file = "data_format: conversations come from one file; give data_path, and no data_mix"
    no_folder = "data_format: conversations need the chat template of a saved model; give model_dir"
    assert refused([]) == [no_file, no_folder]
    assert refused(["--data_path", str(talks), "--model", "gpt2-nano"]) == [no_folder]
    mix = ["--data_mix", json.dumps({str(talks): 1}), "--model_dir", str(model)]
    assert refused(mix) == [no_file]


def test_a_folder_without_a_template_and_a_masked_model_are_refused(talks: Path, model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    [complaint] = refused(["--data_path", str(talks), "--model_dir", str(model)])
    assert complaint == f"model_dir: the tokenizer of {model} has no chat template: add chat_template.jinja to it"
    (model / "config.json").write_text(json.dumps({"model_type": "bert"}))
    [complaint] = refused(["--data_path", str(talks), "--model_dir", str(model)])
    assert complaint.startswith("data_format: a masked model answers nobody")
