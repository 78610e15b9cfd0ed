"""Which implementation of a topic's kernels is picked: never the CPU's for another device."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comm_compress.kernels import dispatch

KERNELS = Path(dispatch.__file__).parent
TOPICS = sorted(f"{path.parent.parent.name}.{path.parent.name}" for path in KERNELS.glob("*/*/interface.py"))
TRITON = {topic for topic in TOPICS if (KERNELS / topic.replace(".", "/") / "triton.py").exists()}


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
        dispatch.implementation.__wrapped__(f"comm_compress.kernels.{topic}", device)
    on_gpu = "triton" if installed and topic in TRITON else "reference"
    assert asked == [f"comm_compress.kernels.{topic}.{layer}" for layer in ("cpu", on_gpu, "reference")]


def test_no_file_has_the_name_of_its_topic() -> None:
    """It would take the topic's place in its folder, or not, by what is imported first."""
    for topic in TOPICS:
        folder = KERNELS / topic.replace(".", "/")
        assert not (folder / f"{folder.name}.py").exists(), topic
        module = importlib.import_module(f"comm_compress.kernels.{topic}")
        assert isinstance(getattr(module, folder.name), dispatch.Topic)


def test_there_are_topics_with_kernels_for_gpus() -> None:
    assert len(TOPICS) == 21
    assert {
        *("elements.casts", "elements.random", "packing.bits", "selection.select", "coding.entropy", "coding.streams"),
        *(f"quantisers.{topic}" for topic in ("blocks", "matrix_scales", "onebit", "powers", "votes")),
    } <= TRITON
