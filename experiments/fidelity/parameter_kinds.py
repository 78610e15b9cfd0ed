"""What captured gradients and parameters are like, and what arrives of them by each method, by kind of parameter.

A kind is what has the same name in every layer: ``layers.self_attn.q_proj.weight``. `experiments.fidelity.by_parameter`
says what the numbers are.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core.segments import unflatten
from experiments.fidelity import exchanges
from experiments.fidelity.capture import GRADIENTS, PARAMETERS
from experiments.fidelity.captured import Unit, load


@dataclass(frozen=True)
class Line:
    """One kind of parameter; ``direction`` is `GRADIENTS` or `PARAMETERS`.

    ``elements``: of all its tensors. ``share``: its part of the squared size of them all. ``largest``: the largest
    element over the root mean square; ``rows``, ``columns``: the longest row (output) and column (input) over the
    median one of those that are not all zeros; all three of the median tensor. ``errors``: by method; see the command.
    None is what has no value: rows of vectors, anything of zeros, errors in updates of what was not updated.
    """

    direction: str
    kind: str
    tensors: int
    elements: int
    share: float
    largest: float | None
    rows: float | None
    columns: float | None
    errors: dict[str, float | None]


@dataclass
class _Sums:
    """Of the tensors of one kind: their shapes' measures, and squared sizes and errors in float64."""

    tensors: int = 0
    elements: int = 0
    squares: float = 0.0
    of: float = 0.0
    largest: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    columns: list[float] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)


def kind_of(name: str) -> str:
    """The name of a parameter without the numbers of its layers."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def measure(folder: Path, direction: str, methods: Sequence[str]) -> list[Line]:
    """Measure the last of the captured steps; kinds are in the order of their units' names.

    Raises ValueError for what is no method, and where one step of parameters was captured, which shows no update.
    """
    made = {method: _made(method) for method in methods}
    kinds: dict[str, _Sums] = {}
    for unit in load(folder, direction):
        if direction == PARAMETERS and len(unit.steps) < 2:
            raise ValueError(
                f"{folder}: parameters of one step, which shows no update; capture two or more (--steps 20:24)"
            )
        _describe(unit, direction, kinds)
        for method, compressor in made.items():
            _send(unit, direction, method, compressor, kinds)
    whole = sum(sums.squares for sums in kinds.values())
    return [_line(direction, kind, sums, whole) for kind, sums in kinds.items()]


def _made(method: str) -> cc.Compressor:
    made = cc.make(method)
    if made is None:
        raise ValueError(f"{method}: sends what torch sends; choose a method, for instance int4 (fsdp-lab methods)")
    return made


def _describe(unit: Unit, direction: str, kinds: dict[str, _Sums]) -> None:
    exact = _exact(unit, direction, -1)
    against = exact if direction == GRADIENTS else exact - _exact(unit, direction, -2)
    tensors = (unflatten(flat, unit.segments) for flat in (exact, against))
    for segment, tensor, measured in zip(unit.segments, *tensors, strict=True):
        sums = kinds.setdefault(kind_of(segment.name), _Sums())
        sums.tensors += 1
        sums.elements += tensor.numel()
        sums.squares += _squares(tensor)
        sums.of += _squares(measured)
        if not tensor.any():
            continue
        sums.largest.append(float(tensor.abs().max() / tensor.square().mean().sqrt()))
        if tensor.dim() > 1:
            matrix = tensor.flatten(1)
            sums.rows.append(_longest(matrix.norm(dim=1)))
            sums.columns.append(_longest(matrix.norm(dim=0)))


def _exact(unit: Unit, direction: str, step: int) -> Tensor:
    """``[W, n]`` of a captured step: the mean of the ranks' gradients, or all ranks' parameters."""
    rows = torch.stack([x.float() for x in unit.steps[step]])
    return rows.mean(0) if direction == GRADIENTS else rows


def _send(unit: Unit, direction: str, method: str, compressor: cc.Compressor, kinds: dict[str, _Sums]) -> None:
    send = exchanges.of_gradients if direction == GRADIENTS else exchanges.of_parameters
    (last,) = collections.deque(send(compressor, unit), maxlen=1)
    for segment, error in zip(unit.segments, unflatten(last.arrived - last.exact, unit.segments), strict=True):
        errors = kinds[kind_of(segment.name)].errors
        errors[method] = errors.get(method, 0.0) + _squares(error)


def _line(direction: str, kind: str, sums: _Sums, whole: float) -> Line:
    share = sums.squares / whole if whole else 0.0
    errors = {method: math.sqrt(error / sums.of) if sums.of else None for method, error in sums.errors.items()}
    shape = (_median(sums.largest), _median(sums.rows), _median(sums.columns))
    return Line(direction, kind, sums.tensors, sums.elements, share, *shape, errors)


def _longest(norms: Tensor) -> float:
    return float(norms.max() / norms[norms > 0].median())


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _squares(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())
