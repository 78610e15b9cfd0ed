"""Each method on synthetic elements and captured gradients: what it sends, and what arrives, line by line."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comm_compress.core.encoded import ByteCount
from comm_compress.core.segments import Segment, segments_of
from experiments.fidelity import arrivals, captured
from experiments.fidelity.method_settings import GRADIENT_METHODS, plain

SETTLING = 1  # collectives before the measured one: warm starts are in effect then
SYNTHETIC = {"gauss": torch.distributions.Normal(0.0, 1.0), "laplace": torch.distributions.Laplace(0.0, 1.0)}


@dataclass(frozen=True)
class Line:
    """One method with its settings on one kind of data. ``nmse`` is the squared error over the squared size."""

    method: str
    config: dict[str, Any]
    data: str
    elements: int
    value_bits: float
    index_bits: float
    metadata_bits: float
    nmse: float
    cosine: float

    @property
    def bits(self) -> float:
        """Bits per element, of all kinds together."""
        return self.value_bits + self.index_bits + self.metadata_bits


@dataclass
class _Sums:
    sent: ByteCount
    elements: int = 0
    error: float = 0.0
    size: float = 0.0
    decoded: float = 0.0
    inner: float = 0.0

    def add(self, given: Tensor, arrived: Tensor) -> None:
        x, y = given.double(), arrived.double()
        self.elements += x.numel()
        self.error += float(((x - y) ** 2).sum())
        self.size += float((x**2).sum())
        self.decoded += float((y**2).sum())
        self.inner += float((x * y).sum())


def measure(
    name: str,
    config: dict[str, Any],
    data: str,
    units: Sequence[tuple[str, tuple[Segment, ...], Sequence[list[Tensor]]]],
) -> Line:
    """Run every unit's collectives one after another; the last one of each counts."""
    sums = _Sums(ByteCount())
    compressor = plain(name, config)
    for unit in map(captured.Unit._make, units):
        world = len(unit.steps[0])
        (last,) = collections.deque(arrivals.of_gradients(compressor, unit), maxlen=1)
        sums.sent = sum(last.outcome.sent, sums.sent)
        for given, result in zip(unit.steps[-1], last.outcome.results, strict=True):
            sums.add(given, compressor.contribution(result.sent))
    received = sums.elements * (world - 1) / world  # a rank's own row does not travel
    values, indices, metadata = (8 * b / received for b in sums.sent)
    scale = math.sqrt(sums.size * sums.decoded)
    cosine = sums.inner / scale if scale else 0.0
    return Line(name, config, data, sums.elements, values, indices, metadata, sums.error / sums.size, cosine)


def synthetic(kind: str, elements: int, steps: int) -> list[tuple[str, tuple[Segment, ...], list[list[Tensor]]]]:
    """One square matrix of independent elements for two ranks; torch's global generator is seeded."""
    torch.manual_seed(0)
    side = math.isqrt(elements)
    rows = [[SYNTHETIC[kind].sample((2, side * side // 2)) for _ in range(2)] for _ in range(steps)]
    return [(kind, segments_of([("matrix", (side, side))], 2), rows)]


def lines(methods: Sequence[str], elements: int, gradients: Path | None) -> Iterator[Line]:
    """The whole table, line by line."""
    sources: dict[str, Any] = {kind: synthetic(kind, elements, SETTLING + 1) for kind in SYNTHETIC}
    if gradients is not None:
        sources["gradients"] = [tuple(unit) for unit in captured.load(gradients)]
    for method in methods:
        for config in GRADIENT_METHODS[method]:
            for data, units in sources.items():
                yield measure(method, config, data, units)


HEADER = (
    "| method | settings | data | bits | values | indices | metadata | NMSE | cosine |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---:|"
)


def markdown(line: Line) -> str:
    """One row of the table in Markdown."""
    config = json.dumps(line.config) if line.config else "default"
    parts = [f"{b:.3f}" for b in (line.bits, line.value_bits, line.index_bits, line.metadata_bits)]
    return "| " + " | ".join([line.method, config, line.data, *parts, f"{line.nmse:.3g}", f"{line.cosine:.4f}"]) + " |"
