"""Which implementation of a topic's kernels is picked: never the CPU's for another device."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comm_compress.kernels import dispatch

TOPICS = sorted(value.name for value in vars(dispatch).values() if isinstance(value, dispatch.Topic))
TRITON = {path.stem for path in (Path(dispatch.__file__).parent / "triton").glob("*.py")}


@pytest.mark.parametrize("installed", [True, False], ids=["with Triton", "without Triton"])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_gpu_gets_triton_where_there_is_some_and_else_the_reference(
    topic: str, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        if name == "triton":
            return ModuleSpec(name, None) if installed else None
        return found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(dispatch, "has_triton", dispatch.has_triton.__wrapped__)
    asked: list[str] = []
    imported: Any = SimpleNamespace(import_module=asked.append, util=importlib.util)
    monkeypatch.setattr(dispatch, "importlib", imported)
    for device in ("cpu", "cuda", "xpu"):
        dispatch.implementation.__wrapped__(topic, device)
    on_gpu = "triton" if installed and topic in TRITON else "reference"
    assert [name.split(".")[-2] for name in asked] == ["cpu", on_gpu, "reference"]
    assert {name.split(".")[-1] for name in asked} == {topic}


def test_there_are_topics_with_kernels_for_gpus() -> None:
    assert len(TOPICS) == 21
    assert {
        "blocks",
        "bits",
        "random",
        "select",
        "streams",
        "casts",
        "onebit",
        "votes",
        "powers",
        "entropy",
        "matrix_scales",
    } <= TRITON
