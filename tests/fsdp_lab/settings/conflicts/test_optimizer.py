"""Which optimizer, what a row says of it, and what it cannot be had with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import comm_compress as cc
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.models.matrices import matrices_of_blocks
from fsdp_lab.settings.config import TrainConfig, parse
from fsdp_lab.settings.groups import OptimConfig
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.training.optim import build_optimizer

WRONG = {
    "--muon_momentum 0.9": "muon_momentum: adamw has none; give optimizer muon",
    "--optimizer_compress int8": "optimizer_compress: adamw gathers nothing; give optimizer muon",
    "--optimizer_exchange owners": "optimizer_exchange: adamw exchanges nothing; give optimizer muon",
    "--optimizer muon --optimizer_exchange owners --optimizer_compress delta": "optimizer_exchange: delta with these",
    "--optimizer muon --tp 2": "optimizer: muon gathers the rows that FSDP2 has of whole matrices; leave out tp and pp",
    "--optimizer muon --pp 2": "leave out tp and pp, or give adamw",
    "--optimizer muon --lora_rank 4": "optimizer: muon is for the blocks' own matrices",
    "--optimizer muon --cpu_offload": "cpu_offload: muon's products would be the CPU's",
    "--optimizer muon --optimizer_compress topk": "optimizer_compress: topk with error_feedback is for gradients only",
    "--optimizer muon --optimizer_compress intt8": "optimizer_compress: ",
    "--optimizer lion": "optimizer: got 'lion'",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_is_refused_before_ranks_start(words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        checked(TrainConfig, words.split())
    assert sum(WRONG[words] in complaint for complaint in raised.value.complaints) == 1


def test_drafts_are_adamws() -> None:
    complaints = EagleConfig.of(optimizer="muon").conflicts()
    assert [text for text in complaints if text.startswith("optimizer")] == [
        "optimizer: a draft is trained by adamw; leave it out"
    ]


@pytest.mark.parametrize(
    "words", ["--dp_replicas 2", "--mixed_precision bf16", "--virtual_ranks 4", "--outer_every 30"]
)
def test_it_goes_with_the_rest(words: str) -> None:
    checked(TrainConfig, [*words.split(), "--optimizer", "muon", "--optimizer_compress", "delta mode=lossless"])


def test_rows_say_which_optimizer_and_what_carries_its_gathers() -> None:
    said = [parse(words).row() for words in ([], ["--optimizer", "muon", "--optimizer_compress", "int4  hadamard"])]
    assert [(row["optimizer"], row["optimizer_method"]) for row in said] == [("adamw", None), ("muon", "int4 hadamard")]


class _Blocks(nn.Module):
    """A language model's names: two blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.hf = nn.Module()
        self.hf.config = SimpleNamespace(model_type="gpt2")  # type: ignore[assignment]
        self.hf.transformer = nn.Module()
        self.hf.transformer.wte = nn.Embedding(9, 4)
        self.hf.transformer.h = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.hf.lm_head = nn.Linear(4, 9, bias=False)


def test_muon_has_the_matrices_of_blocks_and_adamw_has_the_rest() -> None:
    model = _Blocks()
    gathers = cc.optim.attach(matrices_of_blocks(model))
    config = OptimConfig(learning_rate=0.1, warmup_steps=0, optimizer="muon", weight_decay=0.3, muon_momentum=0.5)
    optimizer, _ = build_optimizer(model, config, 10, "loop", gathers)
    names = {id(p): name for name, p in model.named_parameters()}
    groups: list[dict[str, Any]] = optimizer.param_groups
    held = [[names[id(p)].removeprefix("hf.") for p in group["params"]] for group in groups]
    assert held == [
        ["transformer.h.0.weight", "transformer.h.1.weight"],
        ["transformer.wte.weight", "lm_head.weight"],
        ["transformer.h.0.bias", "transformer.h.1.bias"],
    ]
    assert [group["weight_decay"] for group in groups] == [0.3, 0.3, 0.0]
    assert (groups[0]["momentum"], groups[0]["lr"]) == (0.5, 0.1)
    kinds = {name: set(optimizer.state[p]) for name, p in model.named_parameters()}
    assert kinds["hf.transformer.h.1.weight"] == {"momentum_buffer"}
    assert kinds["hf.lm_head.weight"] == {"step", "exp_avg", "exp_avg_sq"}
    with pytest.raises(ValueError, match="muon is for the blocks of language models"):
        matrices_of_blocks(torch.nn.Linear(2, 2))
