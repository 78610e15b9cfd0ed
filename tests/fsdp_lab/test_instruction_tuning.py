"""Trainings on conversations: on real and virtual ranks, divided in every way, stopped and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fsdp_lab import validate
from fsdp_lab.models.saved.weights import SavedWeights
from fsdp_lab.results.validation import problems
from tests.fsdp_lab.eagle.tiny import save_target
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import StopAfter, Training, train_all

STEPS = 6
ONE = {"batch_size": 4}  # a rank alone with the conversations of two
SPLITS: dict[str, tuple[int, dict[str, Any]]] = {  # on how many ranks, and how the same conversations are divided
    "on-one": (1, ONE),
    "accumulated": (1, {"gradient_accumulation_steps": 2}),
    "padded": (1, {**ONE, "max_length": 200}),
    "tensors": (2, {**ONE, "tp": 2}),
    "positions": (2, {**ONE, "tp": 2, "layout": "sp", "max_length": 96}),
    "pipeline": (2, {**ONE, "pp": 2, "pp_micro_batches": 2}),
}


def talk(i: int) -> dict[str, Any]:
    """Answers of very different lengths, so that a mean of ranks' means is not the mean."""
    said = {"user": f"{i}?", "assistant": "yes, " * (1 + 7 * (i % 3 == 0)) + str(i)}
    return {"id": f"talk {i}", "messages": [{"role": role, "content": text} for role, text in said.items()]}


class Trained:
    """Runs of a tiny Llama that reads bytes, by name."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.model_dir = save_target(folder / "base")
        self.talks = folder / "talks.jsonl"
        self.talks.write_text("\n".join([*(json.dumps(talk(i)) for i in range(40)), "{broken"]))
        int8 = {"comm_compress": "int8", "param_compress": "int8"}
        cut = Training(self.flags("cut", **int8), event=StopAfter(3))
        trainings = [Training(self.flags("real", **int8)), cut, Training(self.flags("cut", **int8))]
        trainings += [Training(self.flags("stock")), Training(self.flags("identity", comm_compress="identity"))]
        trainings += [Training(self.flags(name, **how), ranks=ranks) for name, (ranks, how) in SPLITS.items()]
        trainings += [Training(self.flags("virtual", **int8, virtual_ranks=2), ranks=1)]
        self.ended = train_all(trainings)
        self.rows = {row["run_name"]: row for row in self.lab.rows()}

    def flags(self, run_name: str, **changes: Any) -> list[str]:
        settings: dict[str, Any] = {"data_path": self.talks, "data_format": "conversations"}
        settings |= {"model_dir": self.model_dir, "max_length": 100, "val_fraction": 0.1, "warmup_steps": 1}
        settings |= {"max_steps": STEPS, "log_interval": 1, "learning_rate": 1e-2}
        settings |= {"grad_error_every": 0, "run_name": run_name}
        return self.lab.flags(**settings | changes)

    def curve(self, name: str, key: str) -> list[float]:
        lines = (self.lab.folder / self.rows[name]["loss_curve"]).read_text().splitlines()
        found = [json.loads(line)[key] for line in lines if key in json.loads(line)]
        assert len(found) == STEPS, f"{key} of {name}"
        return found

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(self.lab.folder / "out" / "runs" / name / "final_model" / "model.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("conversations"))


@pytest.mark.parametrize("name", SPLITS)
def test_the_loss_is_the_mean_over_all_answers_however_they_are_divided(trained: Trained, name: str) -> None:
    for key in ("train_loss", "grad_norm"):
        assert trained.curve(name, key) == pytest.approx(trained.curve("stock", key), rel=1e-4), key
    assert trained.rows[name]["val_loss"] == pytest.approx(trained.rows["stock"]["val_loss"], rel=1e-5)
    for key in ("val_tokens", "tokens_seen"):
        assert trained.rows[name][key] == trained.rows["stock"][key], key


def test_every_row_says_which_weights_it_began_with(trained: Trained) -> None:
    digest = SavedWeights(Path(trained.model_dir)).digest()
    assert {row["start_digest"] for row in trained.rows.values()} == {digest}


@pytest.mark.parametrize(("name", "like"), [("cut", "real"), ("virtual", "real"), ("identity", "stock")])
def test_resumed_virtual_and_identity_runs_are_the_others_bit_for_bit(trained: Trained, name: str, like: str) -> None:
    expected, found = trained.weights(like), trained.weights(name)
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []
    assert trained.rows[name]["val_loss"] == trained.rows[like]["val_loss"]
    assert trained.rows[name]["data_digest"] == trained.rows[like]["data_digest"] is not None


def test_it_learns_and_its_row_is_whole_and_validation_repeats_it(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    row = trained.rows["stock"]
    assert problems(row) == []
    assert trained.curve("stock", "train_loss")[-1] < 0.5 * trained.curve("stock", "train_loss")[0]
    assert row["dataset"] == str(trained.talks)
    assert row["tokens_seen"] < STEPS * 4 * 100, "padding is not counted"
    assert validate.main(["--model_dir", str(trained.lab.folder / "out/runs/stock/final_model")]) == 0
    said = capsys.readouterr().out
    assert f"loss {row['val_loss']:.4f}, PPL {row['val_ppl']:.2f} over {row['val_tokens']} tokens" in said
