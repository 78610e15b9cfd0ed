"""What several sparsifiers share: error feedback in one pass, and settings that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import comm_compress as cc
from comm_compress.kernels import Residual
from tests.comm_compress.methods.sparsifiers.samples import normal, state
from tests.comm_compress.table import codec


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("topk", {}),
        ("topk", {"values": "bf16"}),
        ("topk", {"selection": "chunked", "chunk_size": 300}),
        ("topk", {"values": "bf16", "order": "quantize_first"}),
        ("thresholdv", {}),
        ("thresholdv", {"threshold": 1.0, "values": "fp16"}),
        ("thresholdv", {"quantile": 0.5}),
    ],
)
def test_feedback_in_one_pass_is_feedback_in_three(name: str, config: dict[str, Any]) -> None:
    """The same bytes and the same residual as of a target that was added beforehand."""
    n = 200_001
    rows, old, new = normal(2, n), normal(2, n, 1), torch.empty(2, n)
    compressor, target = codec(name, config), rows + old
    expected = compressor.encode(target, state(2))
    sent = compressor.encode_with_feedback(rows, Residual(old, 1.0, new), state(2))
    assert sent.lengths == expected.lengths
    assert torch.equal(sent.buffer, expected.buffer)
    assert torch.equal(new, compressor.subtract_contribution(target, expected))


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("topk", {"k": 0}, ["k = 0", "positive"]),
        ("topk", {"selection": "sampled"}, ["selection = 'sampled'", "'chunked'"]),
        ("topk", {"selection": "chunked", "chunk_size": 1}, ["chunk_size = 1"]),
        ("topk", {"indices": "golomb"}, ["indices = 'golomb'", "'rice'"]),
        ("topk", {"values": "int9"}, ["values", "did you mean 'int8'"]),
        ("topk", {"values": {"method": "int8", "block_size": 1}}, ["values", "block_size = 1"]),
        ("topk", {"values": {"method": "int8", "scale": "global"}}, ["values = ", "single rows"]),
        ("topk", {"values": {"method": "int8", "error_feedback": True}}, ["values = ", "single rows"]),
        ("topk", {"values": "dgc"}, ["values = 'dgc'", "remember nothing"]),
        ("thresholdv", {"values": "randomk"}, ["values = 'randomk'", "send all"]),
        ("topk", {"order": "quantize_first"}, ["order = 'quantize_first'", "without values"]),
        ("topk", {"order": "quantize_first", "values": "int8"}, ["order = 'quantize_first'", "'int8'"]),
        ("randomk", {"scaling": "mean"}, ["scaling = 'mean'", "'unbiased'"]),
        ("randomk", {"ratio": 1.5}, ["ratio = 1.5"]),
        ("thresholdv", {"threshold": 0.0}, ["threshold = 0.0", "above 0"]),
        ("thresholdv", {"threshold": -1}, ["threshold = -1", "above 0"]),
        ("thresholdv", {"quantile": 1.0}, ["quantile = 1.0", "below 1"]),
        ("thresholdv", {"threshold": 1.0, "quantile": 0.5}, ["quantile = 0.5", "threshold is given"]),
        ("dgc", {"momentum": 1.0}, ["momentum = 1.0"]),
        ("dgc", {"warmup_ratio_steps": -1}, ["warmup_ratio_steps = -1"]),
        ("dgc", {"clip_unit_norm": 0.0}, ["clip_unit_norm = 0.0"]),
        ("dgc", {"error_feedback": True}, ["error_feedback", "itself"]),
    ],
)
def test_mistakes_are_named(name: str, config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        cc.make(name, config)
    for word in words:
        assert word in str(caught.value)
