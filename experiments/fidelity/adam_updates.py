"""Captured steps given to each method: Adam's updates from what arrives, and the parameters that ranks see.

`experiments.fidelity.update_error` says what is summed up of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core.encoded import ByteCount
from experiments.fidelity import arrivals
from experiments.fidelity.capture import GRADIENTS, PARAMETERS
from experiments.fidelity.captured import Unit, load
from experiments.fidelity.method_settings import GRADIENT_METHODS, PARAMETER_METHODS, Settings

BETAS, EPSILON = (0.9, 0.95), 1e-8  # the trainer's
JUDGED = 4  # the last quarter


@dataclass(frozen=True)
class Line:
    """One method in the table.

    ``size`` is the length of the updates from its gradients, or its parameters' error measured in updates (see the
    module). ``gradient_error`` and ``gradient_cosine``: None of parameters; the cosine also where nothing arrived."""

    kind: str
    method: str
    config: Settings
    bits: float
    error: float
    size: float
    behind: float
    gradient_error: float | None = None
    gradient_cosine: float | None = None


class _Adam:
    """Adam's updates of one rank's shard. The averages keep their bias, which both updates compared have alike."""

    def __init__(self) -> None:
        self.first: Tensor | float = 0.0
        self.second: Tensor | float = 0.0

    def update(self, gradient: Tensor) -> Tensor:
        b1, b2 = BETAS
        self.first = b1 * self.first + (1 - b1) * gradient
        self.second = b2 * self.second + (1 - b2) * gradient.square()
        return self.first / (self.second.sqrt() + EPSILON)


@dataclass
class _Gradients:
    """What arrives, c, beside the exact mean, g: sums of squares and products."""

    arrived: float = 0.0
    exact: float = 0.0
    product: float = 0.0

    def add(self, arrived: Tensor, exact: Tensor) -> None:
        self.arrived += _dot(arrived, arrived)
        self.exact += _dot(exact, exact)
        self.product += _dot(arrived, exact)

    @property
    def error(self) -> float | None:
        """|c - g| / |g|; None where there was no g."""
        return math.sqrt(max(self.arrived - 2 * self.product + self.exact, 0) / self.exact) if self.exact else None

    @property
    def cosine(self) -> float | None:
        """The cosine of c and g; None where nothing arrived."""
        norms = math.sqrt(self.arrived * self.exact)
        return self.product / norms if norms else None


@dataclass
class _Sums:
    """Sums over judged steps, units and ranks, in float64."""

    sent: ByteCount = field(default_factory=ByteCount)
    elements: int = 0
    error: float = 0.0
    of: float = 0.0
    size: float = 0.0
    against: float = 0.0
    missing: float = 0.0
    along: float = 0.0
    gradients: _Gradients = field(default_factory=_Gradients)

    def add_sent(self, sent: Sequence[ByteCount], elements: int) -> None:
        self.sent = sum(sent, self.sent)
        self.elements += elements

    @property
    def bits(self) -> float:
        return 8 * self.sent.total / self.elements


def measure(kind: str, method: str, config: Settings, units: Sequence[Unit]) -> Line:
    """Measure one method on captured units of its kind."""
    judge = _judge_gradients if kind == GRADIENTS else _judge_parameters
    sums = _Sums()
    for unit in units:
        judge(_made(method, config), unit, sums)
    size = math.sqrt(sums.size / sums.of if kind == GRADIENTS else sums.error / sums.along)
    behind = sums.missing / sums.along
    arrived = sums.gradients
    return Line(kind, method, config, sums.bits, sums.error / sums.of, size, behind, arrived.error, arrived.cosine)


def _judge_gradients(compressor: cc.Compressor, unit: Unit, sums: _Sums) -> None:
    world = len(unit.steps[0])
    exact, arrived = [_Adam() for _ in range(world)], [_Adam() for _ in range(world)]
    for number, step in enumerate(arrivals.of_gradients(compressor, unit)):
        is_judged = _is_judged(number, unit)
        if is_judged:
            sums.add_sent(step.outcome.sent, step.exact.numel() * (world - 1))
        for rank, (mean, seen) in enumerate(zip(step.exact, step.arrived, strict=True)):
            wanted = exact[rank].update(mean)
            update = arrived[rank].update(seen)
            if is_judged:
                sums.gradients.add(seen, mean)
                sums.error += _dot(update - wanted, update - wanted)
                sums.of += _dot(wanted, wanted)
                sums.size += _dot(update, update)
                momentum = torch.as_tensor(exact[rank].first)
                own = torch.as_tensor(exact[rank].second).double().sqrt()
                share = torch.where(own > 0, momentum / own, 0)
                sums.missing += _dot(torch.where(own > 0, (momentum - arrived[rank].first) / own, 0), share)
                sums.along += _dot(share, share)


def _judge_parameters(compressor: cc.Compressor, unit: Unit, sums: _Sums) -> None:
    world = len(unit.steps[0])
    for number, step in enumerate(arrivals.of_parameters(compressor, unit)):
        if number and _is_judged(number, unit):
            sums.add_sent(step.outcome.sent, step.exact.numel() * (world - 1))
            for row, before, seen in zip(step.exact, unit.steps[number - 1], step.arrived, strict=True):
                error, update = seen - row, row - before
                sums.error += _dot(error, error)
                sums.of += _dot(row, row)
                sums.missing -= _dot(error, update)
                sums.along += _dot(update, update)


def _is_judged(number: int, unit: Unit) -> bool:
    return number >= len(unit.steps) - max(1, len(unit.steps) // JUDGED)


def _made(method: str, config: Settings) -> cc.Compressor:
    made = cc.make(method, config)
    assert made is not None
    return made


def _dot(a: Tensor, b: Tensor) -> float:
    return float(a.double().flatten() @ b.double().flatten())


def lines(folder: Path, methods: Sequence[str]) -> Iterator[Line]:
    """The whole table, methods of gradients first."""
    for kind, settings in ((GRADIENTS, GRADIENT_METHODS), (PARAMETERS, PARAMETER_METHODS)):
        units = load(folder, kind)
        for method in settings:
            if method in methods:
                yield from (measure(kind, method, config, units) for config in settings[method])
