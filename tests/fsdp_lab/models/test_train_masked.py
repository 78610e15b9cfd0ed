"""Runs of a BERT: real and virtual ranks, stopped and gone on with, and what they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers.models.bert.modeling_bert import BertForPreTraining

from fsdp_lab import validate
from fsdp_lab.results.validation import problems
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import StopAfter, Training, train_all


class Trained:
    """Runs of a small BERT by name."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        cut = Training(self.flags("cut"), event=StopAfter(3))
        on_two = [Training(self.flags("real")), cut, Training(self.flags("cut"))]
        self.ended = train_all([*on_two, Training(self.flags("mix", data_mix=self.lab.mix()))])
        self.ended += train_all([Training(self.flags("virtual", virtual_ranks=2), ranks=1)])
        self.rows = {row["run_name"]: row for row in self.lab.rows()}

    def flags(self, run_name: str, **changes: Any) -> list[str]:
        settings: dict[str, Any] = {
            "model": "bert-nano",
            "vocab_size": 400,
            "max_length": 32,
            "warmup_steps": 2,
            "max_steps": 6,
            "grad_error_every": 0,
            "comm_compress": "int8",
            "param_compress": "bf16",
            "run_name": run_name,
        }
        return self.lab.flags(**{**settings, **changes})

    def model(self, name: str) -> Path:
        return self.lab.folder / "out" / "runs" / name / "final_model"

    def weights(self, name: str) -> dict[str, Tensor]:
        return load_file(self.model(name) / "model.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("masked"))


@pytest.mark.parametrize("name", ["cut", "virtual"])
def test_resumed_and_virtual_runs_are_the_whole_real_one_bit_for_bit(trained: Trained, name: str) -> None:
    whole, other = trained.weights("real"), trained.weights(name)
    assert [key for key in whole if not torch.equal(whole[key], other[key])] == []
    for key in ("val_loss", "val_accuracy", "val_next_sentence_loss", "val_next_sentence_accuracy", "data_digest"):
        assert trained.rows[name][key] == trained.rows["real"][key] is not None, key
    assert trained.rows["cut"]["resumed_at_steps"] == [3]


def test_a_row_says_how_both_tasks_went_and_validation_repeats_it(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    row = trained.rows["real"]
    assert problems(row) == []
    assert row["val_tokens"] % 5 == 0, "5 of 32 positions a sequence"
    assert row["train_loss"] > row["val_loss"] > 4
    assert validate.main(["--model_dir", str(trained.model("real")), "--cache_dir", str(trained.lab.folder / "c")]) == 0
    said = capsys.readouterr().out
    assert f"loss {row['val_loss']:.4f}, PPL {row['val_ppl']:.2f} over {row['val_tokens']} tokens" in said
    assert f"next sentence: loss {row['val_next_sentence_loss']:.4f}" in said


def test_what_was_saved_is_a_bert_for_everyone(trained: Trained) -> None:
    _, report = BertForPreTraining.from_pretrained(trained.model("real"), output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    card = (trained.model("real") / "README.md").read_text()
    assert "pipeline_tag: fill-mask" in card
    assert "BertForPreTraining.from_pretrained" in card
    assert "| next-sentence accuracy |" in card


def test_a_mix_is_refused(trained: Trained) -> None:
    assert [ended is None for ended in trained.ended] == [True, False, True, False, True]
    assert "data_mix: a masked model" in str(trained.ended[3])
    assert "mix" not in trained.rows
