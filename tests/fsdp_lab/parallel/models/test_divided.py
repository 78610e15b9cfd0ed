"""A divided model is the whole model: loss and every gradient, in every layout, with equal and unequal shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

import comm_compress as cc
from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.data.batches.masked.masking import num_chosen
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.architectures.families import family_of, new_config
from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.division.linear import RowLinear
from fsdp_lab.parallel.division.split import divide
from fsdp_lab.parallel.division.wiring import Wiring
from fsdp_lab.parallel.models.choice import divided_model
from fsdp_lab.parallel.models.divided import Divided
from tests.distributed import run_ranks

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 101}
LLAMA = {**SIZES, "num_key_value_heads": 4, "intermediate_size": 48, "max_position_embeddings": 32}
CONFIGS = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 8, "vocab_size": 101, "n_positions": 32},
    "bert": {**SIZES, "intermediate_size": 48, "max_position_embeddings": 32, "type_vocab_size": 2},
    "llama": {**LLAMA, "tie_word_embeddings": False},
    "qwen2": {**LLAMA, "tie_word_embeddings": True},
    "qwen3": {**LLAMA, "head_dim": 8, "tie_word_embeddings": True},
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def fresh(family: str, dtype: torch.dtype = torch.float32, blocks: int = 2) -> PreTrainedModel:
    config = new_config(family, **CONFIGS[family])
    config.num_hidden_layers = blocks
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * blocks
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = family_of(config).model(config)
    for p in model.parameters():  # norms and biases too: ones and zeros hide errors
        torch.nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.1)
    return model.to(dtype)


def batch(family: str, length: int = 17, rows: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 101, (rows, length), generator=generator)
    if family != "bert":
        return tokens
    labels = torch.full_like(tokens, IGNORED)
    for row in range(rows):  # unevenly many a rank
        masked = 1 + torch.randperm(length - 1, generator=generator)[: num_chosen(length)]
        labels[row, masked] = torch.randint(0, 101, masked.shape, generator=generator)
    labels[:, 0] = torch.arange(rows) % 2
    types = (torch.arange(length) > length // 2).long().expand(rows, length)
    return torch.stack([tokens, types, labels], -1)


def wiring(layout: str, shares: Sequence[float]) -> Wiring:
    return Wiring(LAYOUTS[layout], dist.group.WORLD, shares, cc.parallel.Activations(), cc.parallel.Activations())


def in_float64(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(hidden @ weight.T, targets, reduction="sum", ignore_index=IGNORED)


def differences(
    family: str, layout: str, shares: Sequence[float], dtype: torch.dtype, spoil: str = "nothing", length: int = 17
) -> list[str]:
    """The parameters whose gradient on this rank is not its piece of the whole model's; "loss" where that differs."""
    torch.set_num_threads(1)
    serial: Any = objective(fresh(family, dtype))
    if dtype == torch.float64 and family != "bert":
        serial.loss = in_float64  # the trainer's own sums in float32
    expected = serial(batch(family, length)) / 48
    expected.backward()
    model = divided_model(fresh(family, dtype), wiring(layout, shares))
    SPOILERS[spoil](model)
    alike = same_evaluation(serial, model, batch(family, length, 300 if family == "bert" else 60))
    if dtype == torch.float64 and not model.wiring.layout.vocabulary:
        model._loss = in_float64
    loss = model(batch(family, length)) / 48
    loss.backward()
    wrong = [] if abs(loss - expected) < TOLERANCE[dtype] * 10 else [f"loss {loss.item()} {expected.item()}"]
    wrong += [] if alike else ["evaluation"]
    whole = dict(serial.hf.named_parameters())
    seen = 0
    for name, p in model.hf.named_parameters():
        gradient = p.grad
        if name in model.division.summed:
            dist.all_reduce(gradient)
        piece = model.division.pieces.get(name)
        wanted = whole[name].grad if piece is None else piece.take(whole[name].grad)
        assert gradient is not None
        assert wanted is not None
        seen += 1
        if not (gradient - wanted).abs().max() < TOLERANCE[dtype]:
            wrong.append(name)
    assert seen == len(whole)
    return wrong


@torch.no_grad()
def same_evaluation(serial: Objective, divided: Divided, rows: Tensor) -> bool:
    """Losses alike, and as many first choices, of rows that count."""
    weight = torch.ones(len(rows))
    weight[-2:] = 0
    theirs, ours = serial(rows, weight).double(), divided(rows, weight).double()
    assert theirs[1] > 0, "some tokens are told rightly"
    return ours.shape == theirs.shape and bool(torch.allclose(ours, theirs, rtol=1e-5))


def nothing(model: Divided) -> None:
    """The model as it is."""


def sum_no_replicas(model: Divided) -> None:
    """Norms and biases that act on a part of the positions, or of the heads, keep their part of the gradient."""
    model.division.summed.clear()


def copy_without_sum(model: Divided) -> None:
    """The gradient of a divided part's input stays this rank's."""
    for name, place in model.wiring.activations.places.items():
        if name.endswith(".in"):
            place.backward.all_reduce = lambda gradient: gradient  # type: ignore[assignment,method-assign]


def first_rank_only(model: Divided) -> None:
    """Keys' and values' gradients are split without being summed."""
    rank = model.wiring.rank
    for name, place in model.wiring.activations.places.items():
        if name.endswith(".keys"):
            split = lambda g, dim, _: g.chunk(2, dim)[rank].contiguous()  # noqa: E731
            place.backward.reduce_scatter = split  # type: ignore[assignment,method-assign]


def bias_on_every_rank(model: Divided) -> None:
    """The bias of a divided layer is added before the sum: as often as there are ranks."""
    for module in model.modules():
        if isinstance(module, RowLinear):
            bias, leave = module.bias, module._leave
            module._leave = lambda y, bias=bias, leave=leave: leave(y + bias)  # type: ignore[misc]


def masked_as_first(model: Divided) -> None:
    """The causal mask of every rank is that of the first positions."""
    for module in model.modules():
        if keys := getattr(module, "gathered_keys", None):
            keys.mask = lambda device, causal: torch.ones(8, 16, dtype=torch.bool, device=device).tril()[None, None]


SPOILERS: dict[str, Callable[[Divided], None]] = {
    function.__name__: function
    for function in (
        nothing,
        sum_no_replicas,
        copy_without_sum,
        first_rank_only,
        bias_on_every_rank,
        masked_as_first,
    )
}
SHARES = {2: ([1, 1], [3, 1]), 3: ([1, 1, 1], [1, 2, 1])}


def of_all_layouts(family: str, world: int, dtype: torch.dtype = torch.float32) -> list[str]:
    """Everything that is wrong on this rank, by layout and shares."""
    cases = [(layout, shares) for layout in LAYOUTS for shares in SHARES[world]]
    found = {f"{layout} {shares}": differences(family, layout, shares, dtype) for layout, shares in cases}
    return [f"{case}: {wrong}" for case, wrong in found.items() if wrong]


@pytest.mark.parametrize("family", CONFIGS)
def test_every_gradient_is_that_of_the_whole_model(family: str) -> None:
    for wrong in run_ranks(2, of_all_layouts, family, 2):
        assert not wrong


@pytest.mark.parametrize("family", ["gpt2", "bert"])  # the others' norms are computed in float32, whatever comes in
def test_in_float64_they_are_equal_to_ten_digits(family: str) -> None:
    for wrong in run_ranks(2, of_all_layouts, family, 2, torch.float64):
        assert not wrong


def test_three_ranks() -> None:
    for wrong in run_ranks(3, of_all_layouts, "gpt2", 3):
        assert not wrong


def spoiled() -> dict[str, list[str]]:
    """What is found wrong on this rank when one thing is spoiled."""
    cases = [
        ("qwen3", "tp", "sum_no_replicas"),
        ("llama", "galaxy", "sum_no_replicas"),
        ("llama", "tp", "copy_without_sum"),
        ("gpt2", "sp", "first_rank_only"),
        ("gpt2", "tp", "bias_on_every_rank"),
        ("gpt2", "sp", "masked_as_first"),
    ]
    return {" ".join(case): differences(case[0], case[1], [1, 1], torch.float32, case[2], length=16) for case in cases}


def test_a_broken_wiring_is_noticed() -> None:
    by_rank = run_ranks(2, spoiled)
    for case in by_rank[0]:
        assert any(found[case] for found in by_rank), case


def refusals() -> list[str]:
    """The messages about what cannot be divided."""
    messages = []
    for layout, shares, change in (
        ("tp", [9, 1], {}),
        ("tp", [1, 1], {"_attn_implementation": "eager"}),
        ("tp", [1, 1], {"model_type": "minicpm"}),
    ):
        model = fresh("llama")
        for name, value in change.items():
            setattr(model.config, name, value)
        with pytest.raises(ValueError, match=r"give|cannot") as error:
            divide(model, wiring(layout, shares))
        messages.append(str(error.value))
    return messages


def test_what_cannot_be_divided_is_refused() -> None:
    heads, kernel, architecture = run_ranks(2, refusals)[0]
    assert heads.startswith("shares: of 4 heads (of keys and values) in shares 9, 1, rank 1 would get none")
    assert "give sdpa" in kernel
    assert "a minicpm cannot be divided" in architecture
