"""--virtual_ranks against as many real ranks, and what a row of them says."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

import comm_compress as cc
from fsdp_lab.models.operators import blocks
from fsdp_lab.results import TIMES
from fsdp_lab.results.validation import problems
from fsdp_lab.settings.config import parse
from fsdp_lab.settings.models.presets import resolve
from fsdp_lab.settings.reading.fields import ConfigError
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import Training, train_all

RUNS: dict[str, dict[str, Any]] = {
    "none": {"comm_compress": "none", "gradient_accumulation_steps": 2},
    "identity": {"comm_compress": "identity", "param_compress": "identity"},
    "int8": {"comm_compress": "int8", "param_compress": "int8", "gradient_accumulation_steps": 2},
    "topk": {
        "comm_compress": "topk",
        "comm_config_json": '{"ratio": 0.05, "indices": "rice"}',
        "param_compress": "bf16",
    },
    "powersgd": {"comm_compress": "powersgd", "comm_config_json": '{"min_numel": 200}', "param_compress": "identity"},
    "delta": {"comm_compress": "int4", "param_compress": "delta", "fsdp_reshard": "false"},
    "muon": {"comm_compress": "int8", "param_compress": "identity", "optimizer": "muon", "optimizer_compress": "delta"},
    "none in bf16": {"comm_compress": "none", "mixed_precision": "bf16"},
    "delta in bf16": {
        "comm_compress": "int4",
        "comm_config_json": '{"hadamard": true}',
        "param_compress": "delta",
        "mixed_precision": "bf16",
        "gradient_accumulation_steps": 2,
    },
}
ABOVE_TWO = ("int8",)
COUNTS = (
    "steps",
    "tokens_seen",
    "bytes_raw_by_op",
    "bytes_compressed_by_op",
    "elements_by_op",
    "value_bytes",
    "index_bytes",
    "metadata_bytes",
    "bytes_source",
    "extra_collectives",
    "feedback_bytes",
    "grad_samples",
    "nonfinite_steps",
    "clip_rate",
    "val_tokens",
    "num_parameters",
    "dataset_tokens",
)


class Played:
    """All runs, real and virtual, each row by (world size, virtual?, name of the run)."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        save_tiny_model(folder / "tiny")
        both = self.flags("int8", 2, False, run_name="both", virtual_ranks=4)
        on_two = [*(self.flags(name, 2, False) for name in RUNS), both]
        self.refused = train_all([Training(flags) for flags in on_two])[-1]
        train_all([Training(self.flags(name, 4, False), ranks=4) for name in ABOVE_TWO])
        void = {"learning_rate": 1e30, "max_nonfinite_steps": 3, "warmup_steps": 0}
        played = [
            *(self.flags(name, 2, True) for name in RUNS),
            *(self.flags(name, 4, True) for name in ABOVE_TWO),
            self.flags("int8", 3, True, run_name="void", **void),
        ]
        self.ended = train_all([Training(flags, ranks=1) for flags in played])
        self.rows = {row["run_name"]: row for row in self.lab.rows()}

    def flags(self, name: str, world: int, virtual: bool, **changes: Any) -> list[str]:
        settings: dict[str, Any] = {
            "model_dir": self.lab.folder / "tiny",
            "learning_rate": 1e-2,
            "warmup_steps": 2,
            "max_steps": 5,
            "max_grad_norm": 0.3,
            "val_fraction": 0.004,
            "log_interval": 1,
            "grad_error_every": 3,
            "threads": 1,  # sums inside torch's kernels are split by threads
            "run_name": f"{name}-{world}-{'virtual' if virtual else 'real'}".replace(" ", "-"),
            "virtual_ranks": world if virtual else 0,
        }
        return self.lab.flags(**settings | RUNS[name] | changes)

    def pair(self, name: str, world: int) -> tuple[dict[str, Any], dict[str, Any]]:
        stem = f"{name}-{world}".replace(" ", "-")
        return self.rows[f"{stem}-real"], self.rows[f"{stem}-virtual"]

    def curve(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.lab.folder / row["loss_curve"]).read_text().splitlines()]

    def weights(self, row: dict[str, Any]) -> dict[str, torch.Tensor]:
        return load_file(self.lab.folder / "out" / "runs" / row["run_name"] / "final_model" / "model.safetensors")


def save_tiny_model(folder: Path) -> None:
    """A GPT-2 of bytes. 36 and 257: multiples of neither a vector's width nor of the ranks."""
    torch.manual_seed(0)
    shape = {"vocab_size": 257, "n_embd": 36, "n_layer": 2, "n_head": 2, "n_positions": 16}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    GPT2LMHeadModel(GPT2Config(bos_token_id=256, eos_token_id=256, **shape, **dropout)).save_pretrained(folder)
    save_byte_tokenizer(folder)


def save_byte_tokenizer(folder: Path) -> None:
    """256 bytes and an end of text."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("played"))


@pytest.mark.parametrize("name", RUNS)
def test_two_virtual_ranks_train_as_two_real_ones_bit_for_bit(played: Played, name: str) -> None:
    real, virtual = played.pair(name, 2)
    assert virtual["clip_rate"] > 0, "or the norm's last bits would not matter"
    for key in ("val_loss", "grad_norm"):
        here, there = ([line.get(key) for line in played.curve(row)] for row in (virtual, real))
        assert here == there, key
    here, there = (
        [line["train_loss"] for line in played.curve(row) if "train_loss" in line] for row in (virtual, real)
    )
    assert here == pytest.approx(there, rel=1e-6), "losses are summed over ranks in another order, for the log alone"
    assert virtual["val_loss"] == real["val_loss"]
    assert virtual["train_loss"] == pytest.approx(real["train_loss"], rel=1e-6), "a mean over steps and ranks"
    ours, theirs = played.weights(virtual), played.weights(real)
    assert ours.keys() == theirs.keys()
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []


@pytest.mark.parametrize("name", ABOVE_TWO)
def test_four_virtual_ranks_train_as_four_real_ones_to_rounding(played: Played, name: str) -> None:
    real, virtual = played.pair(name, 4)
    here, there = (
        [line["train_loss"] for line in played.curve(row) if "train_loss" in line] for row in (virtual, real)
    )
    assert here == pytest.approx(there, rel=1e-4)
    assert virtual["val_loss"] == pytest.approx(real["val_loss"], rel=1e-4)


@pytest.mark.parametrize(("name", "world"), [*((name, 2) for name in RUNS), *((name, 4) for name in ABOVE_TWO)])
def test_their_row_counts_what_real_ranks_send_and_compares_what_they_compare(
    played: Played, name: str, world: int
) -> None:
    real, virtual = played.pair(name, world)
    assert problems(virtual) == []
    for key in COUNTS:
        assert virtual[key] == real[key], key
    for key in ("grad_rel_error", "grad_cos_sim", "residual_norm", "density"):
        assert virtual[key] == (real[key] and pytest.approx(real[key], rel=1e-3 if world > 2 else 1e-9)), key
    assert played.curve(virtual)[-1]["sent_bytes"] == played.curve(real)[-1]["sent_bytes"]


def test_their_row_says_that_they_were_virtual_and_has_no_times(played: Played) -> None:
    real, virtual = played.pair("int8", 4)
    assert (real["world_size"], real["virtual_ranks"]) == (4, None)
    assert (virtual["world_size"], virtual["virtual_ranks"]) == (4, 4)
    assert [name for name in TIMES if virtual[name] is not None] == []
    assert all(line["train_seconds"] is None for line in played.curve(virtual))
    assert virtual["wall_time_s"] > 0
    assert virtual["config_hash"] != real["config_hash"]
    assert problems(virtual | {"tokens_per_s": 5.0}) == [
        "tokens_per_s: got 5.0, but ranks played by one process have no times"
    ]
    assert problems(virtual | {"virtual_ranks": 8}) == ["virtual_ranks: got 8, but world_size is 4"]
    assert "tokens_per_s: missing" in problems(real | {"tokens_per_s": None})


def test_steps_that_are_not_finite_are_skipped_and_in_the_end_fatal(played: Played) -> None:
    assert played.ended[:-1] == [None] * (len(played.ended) - 1)
    assert "3 steps in a row" in str(played.ended[-1])
    row = played.rows["void"]
    assert (row["status"], row["world_size"], row["virtual_ranks"]) == ("failed", 3, 3)


def test_virtual_ranks_and_real_ones_at_once_are_refused(played: Played) -> None:
    assert "virtual_ranks: 4 virtual ranks run in one process, not in 2; use --nproc_per_node 1" in str(played.refused)
    assert "both" not in played.rows


def test_blocks_of_virtual_ranks_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hooks are others in every step: inside of what is compiled they would be compiled, again and again."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain = reduced_by_virtual_ranks(compiled=False)[1]
    frames, gradients = reduced_by_virtual_ranks(compiled=True)
    assert frames[0] == frames[1] == frames[2] > 0
    for here, there in zip(gradients, plain, strict=True):
        torch.testing.assert_close(here, there, rtol=2e-2, atol=1e-4)


def reduced_by_virtual_ranks(compiled: bool) -> tuple[list[int], list[torch.Tensor]]:
    """How many frames had been compiled after each step, and the last step's gradients."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    shape = {"vocab_size": 61, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    hf = GPT2LMHeadModel(GPT2Config(**shape, **dropout, use_cache=False))
    blocks.install(hf, recompute=False, compile=compiled, hooks_change=True)
    units, frames = [f"transformer.h.{i}" for i in range(2)], []
    ranks = cc.VirtualRanks(hf, 2, units, reduce_scatter="int8", all_gather="int8", param_dtype=torch.bfloat16)
    tokens = torch.randint(61, (2, 3, 8), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        hf.zero_grad()
        with ranks.gathered():
            for rank in range(2):
                hf(tokens[rank], labels=tokens[rank]).loss.backward()
                ranks.collect(rank)
        ranks.reduce()
        frames.append(torch._dynamo.utils.counters["frames"]["ok"])
    return frames, [p.grad for p in hf.parameters() if p.grad is not None]


def test_what_virtual_ranks_cannot_do_is_refused_all_at_once() -> None:
    flags = [
        "--virtual_ranks=4",
        "--mixed_precision=fp16",
        "--comm_dtype=bf16",
        '--operators={"compile": "whole"}',
        "--profile",
        "--ppl_at_s=9",
    ]
    with pytest.raises(ConfigError) as refused:
        resolve(parse(flags), has_gpu=False)
    names = [complaint.partition(":")[0] for complaint in refused.value.complaints]
    assert names == ["mixed_precision", "comm_dtype", "compile", "profile", "ppl_at_s"]
    with pytest.raises(ConfigError, match="1 virtual rank is a real one"):
        resolve(parse(["--virtual_ranks=1"]), has_gpu=False)
    for has_gpu in (False, True):
        resolve(parse(["--virtual_ranks=2"]), has_gpu=has_gpu)
    resolve(parse(["--virtual_ranks=2", "--mixed_precision=bf16", "--compile"]), has_gpu=True)
    resolve(parse(flags[1:]), has_gpu=False)
