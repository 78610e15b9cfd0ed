"""The sizes that plans are made from are those of the models that run."""

from __future__ import annotations

import pytest
import torch

from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.parallel.planning.measuring.models import whole_model
from fsdp_lab.parallel.planning.shape import shape_of


@pytest.mark.parametrize("preset", ["gpt2-mini", "bert-mini", "llama-mini", "qwen2-nano", "qwen3-nano", "llama-3.2-1b"])
def test_parameters_are_the_models(preset: str) -> None:
    with torch.device("meta"):
        model = whole_model(preset)
    shape = shape_of(preset)
    block = next(iter(blocks_of(model).values()))
    assert shape.block == sum(p.numel() for p in block.parameters())
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.layers == len(blocks_of(model))


@pytest.mark.parametrize(("preset", "message"), [("gpt2-minni", "did you mean gpt2-mini"), ("minicpm-nano", "cannot")])
def test_models_that_cannot_be_divided_are_refused(preset: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_of(preset)
