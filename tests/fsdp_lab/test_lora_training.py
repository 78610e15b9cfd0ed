"""Training LoRA adapters: exact where nothing is rounded, on virtual ranks, across a restart, and what is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fsdp_lab.results.validation import problems
from tests.distributed import preload
from tests.fsdp_lab.models.tiny import save_tiny
from tests.fsdp_lab.models.virtual.test_ranks import save_byte_tokenizer
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import Training, train_all

preload("fsdp_lab.train")
preload("peft")
STEPS = 6
EXACT = {"comm_compress": "identity", "param_compress": "identity"}
INT8 = {"comm_compress": "int8", "param_compress": "int8"}
RUNS: dict[str, dict[str, Any]] = {
    "none": {},
    "identity": EXACT,
    "kept": {**EXACT, "fsdp_keep_frozen": "true"},
    "int8": INT8,
    "int8-kept": {**INT8, "fsdp_keep_frozen": "true"},
    "whole": {**EXACT, "lora_dropout": 0.3, "save_steps": 3, "activation_checkpointing": "true"},
}
PLAYED = ("none", "int8")


class Trained:
    """Runs of adapters in a small saved Llama, by name."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.base = save_tiny("llama", folder)
        save_byte_tokenizer(self.base)
        checkpoint = folder / "out/runs/whole/checkpoints/step-00000003"
        real = [self.flags(name, **settings) for name, settings in RUNS.items()]
        real.append(self.flags("resumed", **RUNS["whole"], resume=checkpoint))
        played = [self.flags(f"virtual-{name}", **RUNS[name], virtual_ranks=2) for name in PLAYED]
        ended = train_all([Training(flags) for flags in real])
        ended += train_all([Training(flags, ranks=1) for flags in played])
        assert set(ended) == {None}
        self.rows = {row["run_name"]: row for row in self.lab.rows()}

    def flags(self, run_name: str, **changes: Any) -> list[str]:
        settings: dict[str, Any] = {"model_dir": self.base, "lora_rank": 3, "lora_targets": "q_proj,down_proj"}
        settings |= {"learning_rate": 1e-2, "warmup_steps": 1, "max_steps": STEPS, "log_interval": 1}
        return self.lab.flags(**settings | {"grad_error_every": 0, "run_name": run_name} | changes)

    def curve(self, name: str, key: str) -> list[Any]:
        lines = (self.lab.folder / self.rows[name]["loss_curve"]).read_text().splitlines()
        return [json.loads(line)[key] for line in lines if key in json.loads(line)]

    def model(self, name: str, file: str = "model") -> dict[str, torch.Tensor]:
        folder = self.lab.folder / "out" / "runs" / name / "final_model"
        return load_file(folder / f"{file}.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_identity_trains_like_stock_bit_for_bit_also_when_frozen_weights_are_kept(trained: Trained) -> None:
    for name in ("identity", "kept"):
        assert trained.curve(name, "grad_norm") == trained.curve("none", "grad_norm")
        assert same(trained.model(name), trained.model("none"))
        assert trained.rows[name]["val_loss"] == trained.rows["none"]["val_loss"]
    assert not same(trained.model("int8"), trained.model("none")), "or nothing was tested"


@pytest.mark.parametrize("name", PLAYED)
def test_virtual_ranks_train_and_count_like_real_ones(trained: Trained, name: str) -> None:
    real, played = trained.rows[name], trained.rows[f"virtual-{name}"]
    assert trained.curve(f"virtual-{name}", "grad_norm") == trained.curve(name, "grad_norm")
    assert same(trained.model(f"virtual-{name}"), trained.model(name))
    for field in ("bytes_compressed_by_op", "elements_by_op", "trainable_parameters", "val_loss", "lora_targets"):
        assert played[field] == real[field]


def test_only_the_matrices_that_were_named_have_changed(trained: Trained) -> None:
    base, merged = load_file(trained.base / "model.safetensors"), trained.model("none")
    changed = {name for name in base if not torch.equal(base[name], merged[name])}
    layers = ("self_attn.q_proj", "mlp.down_proj")
    assert changed == {f"model.layers.{i}.{layer}.weight" for i in range(2) for layer in layers}
    assert len(trained.model("none", "adapter/adapter_model")) == 2 * len(changed)


def test_a_resumed_run_ends_as_one_that_was_not_stopped(trained: Trained) -> None:
    """With inputs dropped: the random numbers of every rank go on, too."""
    assert trained.rows["resumed"]["resumed_at_steps"] == [3]
    for file in ("model", "adapter/adapter_model"):
        assert same(trained.model("resumed", file), trained.model("whole", file))
    assert trained.curve("resumed", "train_loss") == trained.curve("whole", "train_loss")[3:]
    assert not same(trained.model("whole"), trained.model("none")), "inputs are dropped"


def test_a_row_says_what_was_trained(trained: Trained) -> None:
    for row in trained.rows.values():
        assert problems(row) == []
    row = trained.rows["none"]
    assert (row["lora_rank"], row["lora_alpha"]) == (3, 6.0)
    assert row["lora_targets"] == ["self_attn.q_proj", "mlp.down_proj"]
    assert row["num_parameters"] == sum(p.numel() for p in load_file(trained.base / "model.safetensors").values())
    adapters = trained.model("none", "adapter/adapter_model")
    assert row["trainable_parameters"] == sum(p.numel() for p in adapters.values())
    card = (trained.lab.folder / "out/runs/none/final_model/README.md").read_text()
    assert f"LoRA adapters of rank 3 ({row['trainable_parameters']:,} parameters)" in card


def test_frozen_weights_travel_every_step_or_once(trained: Trained) -> None:
    """Elements in the rows of two ranks, each part of a parameter as long as the longest."""
    adapters = trained.model("none", "adapter/adapter_model").values()
    base = load_file(trained.base / "model.safetensors").values()
    half_adapters, half_base = (sum(-(-len(p) // 2) * p[0].numel() for p in some) for some in (adapters, base))
    for name, kept in (("identity", False), ("kept", True)):
        sent = trained.rows[name]["bytes_compressed_by_op"]
        assert sent["reduce_scatter"] == STEPS * 4 * half_adapters, "gradients of adapters alone"
        gathers = 2 * STEPS * 4 * half_adapters  # a block's twice a step: for forward and for backward
        if kept:
            flags = STEPS * len(base)  # one byte a frozen parameter: has any rank's part changed?
            assert gathers + 4 * half_base < sent["all_gather"] <= gathers + 4 * half_base + 2 * flags
        else:
            in_root = sum(-(-len(p) // 2) * p[0].numel() for p in root_parameters(trained.base))
            assert sent["all_gather"] == gathers + STEPS * 4 * (2 * half_base - in_root)
    assert trained.rows["int8-kept"]["bytes_compressed_total"] < trained.rows["kept"]["bytes_compressed_total"]
    steps = [b - a for a, b in zip(*(trained.curve("kept", "sent_bytes")[i:] for i in (0, 1)), strict=False)]
    assert max(steps[1:]) < 0.1 * 4 * half_base, "after the first step only adapters travel"


def root_parameters(folder: Path) -> list[torch.Tensor]:
    """What belongs to no block: gathered once a step, because the root is not freed after forward."""
    return [p for name, p in load_file(folder / "model.safetensors").items() if ".layers." not in name]
