"""Every implementation of every operator against the naive ones: the loss, and the gradient of every parameter.

float32, random weights of which none is zero or one. Tolerance: a loss within 1e-5 of itself, a parameter's gradient
within 1e-4 of its own norm, or 1e-6 of the whole gradient's (a key's bias has none but rounding: softmax ignores it).
What needs a GPU or a package is skipped without. Compiled ones are traced as always and then run without generated
kernels, which take minutes to compile; `-m slow` compiles them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.architectures.families import family_of
from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.models.operators import choices_for, cross_entropy, gelu, install, rms_norm, rope, swiglu
from fsdp_lab.models.operators.blocks import compile_whole
from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.operators import OPERATORS
from fsdp_lab.settings.operators.table import CONFLICTS
from tests.fsdp_lab.models.architectures.test_masked_lm import config as bert_config, some_batch
from tests.fsdp_lab.models.tiny import some_tokens, tiny_config

LOSS, GRADIENT, ROUNDING = 1e-5, 1e-4, 1e-6
FAMILIES = ("gpt2", "llama", "bert")
CPU = torch.device("cpu")


def tiny(family: str) -> Any:
    config = bert_config() if family == "bert" else tiny_config(family)
    if family == "gpt2":
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return config


def built(family: str, device: torch.device = CPU, **operators: str) -> Objective:
    """A tiny model of a family with these operators, as `build_model` puts them in place."""
    config = tiny(family)
    choices = choices_for(config, ModelConfig(operators=operators), device, "fp32")
    torch.manual_seed(1)
    module = objective(family_of(config).model(config))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    install(module, choices)
    compile_whole(module, choices)
    return module.to(device)


def measured(module: Objective, family: str) -> tuple[Tensor, dict[str, Tensor]]:
    batch = (some_batch() if family == "bert" else some_tokens()).to(next(module.parameters()).device)
    loss = module(batch) / module.num_targets(batch)
    loss.backward()
    return loss.detach().cpu(), {name: p.grad.cpu() for name, p in module.named_parameters() if p.grad is not None}


@cache
def naive(family: str) -> tuple[Tensor, dict[str, Tensor]]:
    return measured(built(family, others="naive"), family)


def differences(family: str, loss: Tensor, gradients: dict[str, Tensor]) -> list[str]:
    """What is beyond the tolerance."""
    expected_loss, expected = naive(family)
    whole = torch.stack([g.norm() for g in expected.values()]).norm()
    found = [] if abs(loss / expected_loss - 1) <= LOSS else [f"loss {loss}, not {expected_loss}"]
    for name, gradient in expected.items():
        distance = (gradients[name] - gradient).norm()
        if not distance <= max(GRADIENT * gradient.norm(), ROUNDING * whole):
            found.append(f"{name}: off by {distance / gradient.norm():.1e} of its norm")
    assert gradients.keys() == expected.keys()
    return found


def implementations() -> Iterator[Any]:
    """Every one that a family has beside the naive one; AdamW's, which sees no model, are compared below."""
    for name, operator in OPERATORS.items():
        for family in FAMILIES:
            if family not in operator.families or name == "adamw":
                continue
            for choice in operator.choices_of(family):
                if choice != operator.naive:
                    named = f"{family}-{name}-{choice}"
                    if choice != "whole" or family == "llama":
                        marks = [pytest.mark.gpu] if operator.choices[choice].only_cuda else []
                        yield pytest.param(family, name, choice, "aot_eager", id=named, marks=marks)
                    if choice in ("compiled", "blocks", "whole") and name != "checkpointing":
                        yield pytest.param(
                            family, name, choice, "inductor", id=f"{named}-in-C++", marks=pytest.mark.slow
                        )


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compile makes of its graphs in this test."""
    torch._dynamo.reset()
    for kept in (rope._rotary, rms_norm._forward, swiglu._gated, gelu._forward):
        kept.cache_clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=request.param))


@pytest.mark.parametrize(("family", "name", "choice", "backend"), list(implementations()), indirect=["backend"])
@pytest.mark.usefixtures("backend")
def test_loss_and_every_gradient_are_the_naive_ones(family: str, name: str, choice: str) -> None:
    needs = OPERATORS[name].choices[choice]
    if needs.only_cuda and not torch.cuda.is_available():  # marked gpu
        pytest.skip("needs a CUDA device")
    device = torch.device("cuda" if needs.only_cuda else "cpu")
    if "cuda" in needs.half_on and device.type == "cuda":
        pytest.skip("has no float32")
    if needs.torch > tuple(map(int, torch.__version__.split(".")[:2])):
        pytest.skip("this torch is older")
    if needs.extra:
        pytest.importorskip({"liger": "liger_kernel", "flash": "flash_attn"}[needs.extra])
    module = built(family, device, **{"others": "naive", name: choice})
    assert differences(family, *measured(module, family)) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("word", ["best", "default"])
def test_what_a_word_stands_for_has_the_naive_gradients(family: str, word: str) -> None:
    assert differences(family, *measured(built(family, others=word), family)) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_no_gradient_is_zero_and_a_wrong_operator_is_seen(family: str) -> None:
    loss, gradients = naive(family)
    assert all(g.abs().max() > 0 for g in gradients.values())
    module = built(family, others="naive")
    norms = [m for m in module.modules() if type(m).__name__.endswith(("RMSNorm", "LayerNorm"))]
    theirs = norms[-1].forward
    norms[-1].forward = lambda x: theirs(x) * 1.001  # type: ignore[method-assign]
    assert len(differences(family, *measured(module, family))) > 1
    assert (
        differences(family, loss, {**gradients, name: gradients[name] * 0.99}) if (name := next(iter(gradients))) else 0
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_leave_a_model_as_transformers_made_it(family: str) -> None:
    module = built(family)
    untouched = objective(copy.deepcopy(module.hf))
    assert not [name for name, m in module.named_modules() if "forward" in vars(m)]
    assert type(module) is type(untouched)
    assert type(getattr(module, "loss", None)) is type(getattr(untouched, "loss", None))
    loss, gradients = measured(module, family)
    expected_loss, expected = measured(untouched, family)
    assert torch.equal(loss, expected_loss)
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def test_one_models_operators_are_not_anothers() -> None:
    fast = built("llama", rms_norm="torch", rope="compiled", swiglu="compiled")
    other = built("llama")
    assert [name for name, m in fast.named_modules() if "forward" in vars(m)]
    assert not [name for name, m in other.named_modules() if "forward" in vars(m)]


@pytest.mark.parametrize("choice", ["whole", "chunked", "torch"])
def test_losses_of_nothing_but_padding_are_zero_and_sums_are_float32(choice: str) -> None:
    if choice == "torch" and not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        pytest.skip("this torch is older")
    loss = cross_entropy.head_loss(choice)
    hidden, weight, none = torch.ones(7, 4), torch.ones(9, 4), torch.full((7,), IGNORED)
    with torch.no_grad():
        assert loss(hidden, weight, none) == 0
        half = torch.float32 if choice == "torch" else torch.bfloat16
        assert loss(hidden.to(half), weight.to(half), torch.arange(7)).dtype == torch.float32


def test_conflicts_name_implementations_that_exist() -> None:
    for conflict in CONFLICTS:
        for name, choice in (conflict.first, conflict.second):
            assert choice in OPERATORS[name].choices
