"""Names and settings: what is accepted, and how what is not is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

import comm_compress as cc
from comm_compress.registry import register


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("int9", {}, ["'int9'", "did you mean 'int8'"]),
        ("int8", {"blocksize": 4}, ["int8", "'blocksize'", "did you mean 'block_size'"]),
        ("int8", {"block_size": 4}, ["block_size = 4", "between 8"]),
        ("int8", {"block_size": 64.0}, ["block_size = 64.0", "whole number"]),
        ("int8", {"block_size": True}, ["block_size = True"]),
        ("int8", {"scale": "unit"}, ["scale = 'unit'", "'block'", "'global'"]),
        ("topk", {"ratio": 0}, ["ratio = 0", "above 0"]),
        ("topk", {"ratio": "0.1", "k": 0.5}, ["ratio = '0.1'", "k = 0.5"]),
        ("topk", {"error_feedback": "yes"}, ["error_feedback = 'yes'"]),
        ("topk", {"error_feedback": {"decay": 2}}, ["error_feedback", "decay = 2"]),
        ("topk", {"error_feedback": {"dtype": "fp8"}}, ["error_feedback", "dtype = 'fp8'"]),
        ("identity", {"error_feedback": True}, ["loses nothing"]),
        ("topk", {"error_feedback": {"reset_every": -1}}, ["error_feedback", "reset_every = -1"]),
        ("int8", {"warmup_steps": -1}, ["warmup_steps = -1", "0 or more"]),
        ("int8", {"warmup_steps": 2.5, "blocksize": 1}, ["warmup_steps = 2.5", "'blocksize'"]),
        ("int8", {"layers": "wte"}, ["layers = 'wte'", "an object"]),
        ("int8", {"layers": {"wte": 4}}, ["layers['wte']: 4", "name"]),
        ("int8", {"layers": {"wte": {"ratio": 1}}}, ["layers['wte']", "needs a 'method'"]),
        ("int8", {"layers": {"wte": {"method": "topk", "ratio": 7}}}, ["layers['wte']", "ratio = 7"]),
        ("none", {"ratio": 1}, ["none takes no settings", "ratio"]),
    ],
)
def test_mistakes_are_named(name: str, config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        cc.make(name, config)
    for word in words[1:]:
        assert word in str(caught.value)


def test_settings_are_complete_and_build_the_same_again() -> None:
    for name in cc.available()[1:]:
        first = cc.make(name)
        assert first is not None
        second = cc.make(name, first.settings)
        assert second is not None
        assert second.settings == first.settings


def test_none_is_no_compressor() -> None:
    assert cc.make("none") is None


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="already"):
        register("int8", dict)
