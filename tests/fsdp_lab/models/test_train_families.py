"""Runs of another architecture than GPT-2: real and virtual ranks, recomputing, and what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsdp_lab import chat, validate
from fsdp_lab.models.architectures.families import new_config
from fsdp_lab.models.build import _sketch
from fsdp_lab.results.validation import problems
from fsdp_lab.settings.groups import ModelConfig
from tests.fsdp_lab.models.tiny import save_tiny
from tests.fsdp_lab.models.virtual.test_ranks import save_byte_tokenizer
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import Training, train_all


class Trained:
    """Runs of a small Llama by name."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        save_byte_tokenizer(save_tiny("llama", folder))
        on_two = [
            self.flags("real"),
            self.flags("recomputed", activation_checkpointing="true"),
            self.flags("plain", operators='{"others": "naive", "adamw": "foreach"}'),
            self.flags("flash", attention="flash"),
            self.flags("long", max_length=64),
        ]
        *ended, self.flash, self.long = train_all([Training(flags) for flags in on_two])
        ended += train_all([Training(self.flags("virtual", virtual_ranks=2), ranks=1)])
        assert set(ended) == {None}
        self.rows = {row["run_name"]: row for row in self.lab.rows()}

    def flags(self, run_name: str, **changes: Any) -> list[str]:
        settings: dict[str, Any] = {
            "model_dir": self.lab.folder / "llama",
            "learning_rate": 1e-2,
            "comm_compress": "int8",
            "param_compress": "bf16",
            "max_steps": 6,
            "log_interval": 1,
            "grad_error_every": 0,
            "val_fraction": 0.004,
            "run_name": run_name,
        }
        return self.lab.flags(**{**settings, **changes})

    def curve(self, name: str) -> list[list[Any]]:
        text = (self.lab.folder / self.rows[name]["loss_curve"]).read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return [[line.get(key) for key in ("train_loss", "grad_norm", "val_loss", "sent_bytes")] for line in lines]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


def test_virtual_ranks_and_recomputing_train_alike_bit_for_bit(trained: Trained) -> None:
    real = trained.curve("real")
    assert len(real) == 7
    assert trained.curve("recomputed") == real
    assert [line[1:] for line in trained.curve("virtual")] == [line[1:] for line in real]


def test_other_operators_train_alike_to_rounding_and_rows_name_them(trained: Trained) -> None:
    assert problems(trained.rows["plain"]) == []
    plain, default = trained.rows["plain"]["operators"], trained.rows["real"]["operators"]
    assert (plain["attention"], plain["cross_entropy"], plain["adamw"]) == ("eager", "whole", "foreach")
    assert (default["attention"], default["cross_entropy"], default["adamw"]) == ("sdpa", "chunked", "fused")
    assert trained.rows["plain"]["config"]["operators"] == {"others": "naive", "adamw": "foreach"}
    assert trained.rows["plain"]["val_loss"] == pytest.approx(trained.rows["real"]["val_loss"], rel=1e-2)
    assert trained.curve("plain")[0][0] == pytest.approx(trained.curve("real")[0][0], rel=1e-5)


def test_rows_say_how_much_of_the_machine_was_used(trained: Trained) -> None:
    row = trained.rows["real"]
    assert problems(row) == []
    assert row["peak_flops_source"] in ("registers", "measured")
    assert 1e8 < row["peak_flops"] < 1e14
    expected = row["tokens_per_s"] * row["flops_per_token"] / (2 * row["peak_flops"])
    assert row["mfu"] == pytest.approx(expected, rel=1e-6)
    assert 0 < row["mfu"] < 1
    assert "mfu: got" in problems({**row, "mfu": 2 * row["mfu"]})[0]
    virtual = trained.rows["virtual"]
    assert (virtual["peak_flops"], virtual["peak_flops_source"], virtual["mfu"]) == (None, None, None)
    assert virtual["flops_per_token"] == row["flops_per_token"]


def test_what_was_saved_can_be_validated_and_talked_to(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(trained.lab.folder / "out" / "runs" / "real" / "final_model")
    assert validate.main(["--model_dir", folder, "--cache_dir", str(trained.lab.folder / "cache")]) == 0
    assert f"PPL {trained.rows['real']['val_ppl']:.2f}" in capsys.readouterr().out
    assert chat.main(["--model_dir", folder, "--prompt", "The", "--max_new_tokens", "3", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("T h e ")  # the test's tokenizer has no decoder


def test_what_the_machine_or_the_model_cannot_do_is_refused(trained: Trained) -> None:
    with pytest.raises(ValueError, match=r"^attention: flash is not available: FlashAttention2 .* installed"):
        _sketch(new_config("llama", attn_implementation="flash_attention_2"), ModelConfig(), "flash")
    assert trained.flash == "ValueError: attention: flash trains on a CUDA device only; give sdpa or eager"
    assert str(trained.long).startswith("ValueError: max_length: 64 is beyond")
    assert {"flash", "long"}.isdisjoint(trained.rows)
