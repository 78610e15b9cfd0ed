"""Copies of a model, as virtual replicas are: each computes with its own weights, whatever its operators are."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.fsdp_lab.models.operators.test_operators import FAMILIES, built, measured

OPERATORS: dict[str, dict[str, str]] = {
    "default": {},
    "naive": {"others": "naive"},
    "recomputed": {"checkpointing": "blocks"},
    "torch's own": {"rms_norm": "torch", "layer_norm": "torch", "gelu": "torch", "cross_entropy": "whole"},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("operators", OPERATORS)
def test_a_copy_computes_with_its_own_weights(operators: str, family: str) -> None:
    chosen = OPERATORS[operators]
    missing = {"llama": ("layer_norm", "gelu"), "gpt2": ("rms_norm",), "bert": ("rms_norm", "cross_entropy")}[family]
    module = built(family, **{name: choice for name, choice in chosen.items() if name not in missing})
    loss, gradients = measured(copy.deepcopy(module), family)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    now, of_other = measured(other, family)
    assert torch.equal(now, loss)
    assert all(torch.equal(of_other[name], gradient) for name, gradient in gradients.items())
    assert all(parameter.grad is None for parameter in module.parameters())
