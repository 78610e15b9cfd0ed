"""Eager torch as a peer: our own methods with every kernel's torch reference in its place."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from comm_compress.core.compressor import Compressor
from comm_compress.kernels import dispatch
from comm_compress.kernels.coding.entropy import entropy
from comm_compress.kernels.coding.streams import streams
from experiments.bench.traffic.codecs.timing import WORLDS, Run, Sample, runs
from experiments.bench.traffic.codecs.unit import LEAST_MIB, Unit

EAGER = "eager torch"


@contextlib.contextmanager
def reference_kernels() -> Iterator[set[str]]:
    """Inside the context every kernel is its torch reference; the set that it yields names the topics asked for.

    Entropy coding keeps its kernels: no torch operations do the same, and its reference is a loop in plain Python.
    """
    asked: set[str] = set()
    chosen = dispatch.implementation

    def reference(folder: str, device_type: str) -> Any:
        if folder in (entropy.folder, streams.folder):
            return chosen(folder, device_type)
        asked.add(folder.rpartition(".")[2])
        return importlib.import_module(f"{folder}.reference")

    with mock.patch.object(dispatch, "implementation", reference):
        yield asked


def eager(plain: Compressor, with_feedback: Compressor | None, unit: Unit) -> list[Run]:
    """The same collectives of 2 ranks with the reference kernels; methods without a kernel are eager torch already."""
    probes = runs(plain, with_feedback, Unit(LEAST_MIB, unit.device), WORLDS[:1])
    collectives = runs(plain, with_feedback, unit, WORLDS[:1])
    return [
        Run(EAGER, _under_reference(run.call))
        for run, probe in zip(collectives, probes, strict=True)
        if _uses_kernels(probe)
    ]


def _uses_kernels(run: Run) -> bool:
    run.call()  # the first collective may draw what later ones keep
    with reference_kernels() as asked:
        run.call()
    return bool(asked - {"finite"})  # which every method asks whether its input is finite


def _under_reference(call: Callable[[], list[Sample]]) -> Callable[[], list[Sample]]:
    def inside() -> list[Sample]:
        with reference_kernels():
            return call()

    return inside
