"""Outliers of captured gradients and parameters, and what each method loses of them, parameter by parameter.

A parameter is one of all layers together: ``layers.self_attn.q_proj.weight``. `experiments.fidelity.by_parameter` says
what the numbers are.
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
from experiments.fidelity import arrivals
from experiments.fidelity.capture import GRADIENTS, PARAMETERS
from experiments.fidelity.captured import Unit, load


@dataclass(frozen=True)
class Line:
    """One parameter of all layers; ``kind`` is `GRADIENTS` or `PARAMETERS`: which of its two is measured.

    ``elements``: of all its ``tensors``, one a layer. ``share``: its part of the squared size of the model's.
    ``largest``: the largest element over the root mean square; ``rows``, ``columns``: the longest row (output) and
    column (input) over the median one of those that are not all zeros; all three of the median tensor. ``errors``: by
    method, the size of the error over that of the exact gradient, or over that of the parameters' last update.
    None is what has no value: rows of vectors, anything of zeros, errors in updates of what was not updated.
    """

    kind: str
    parameter: str
    tensors: int
    elements: int
    share: float
    largest: float | None
    rows: float | None
    columns: float | None
    errors: dict[str, float | None]


@dataclass
class _Sums:
    """Of one parameter's tensors: what stands out in each, and squared sizes and errors in float64."""

    tensors: int = 0
    elements: int = 0
    squares: float = 0.0
    of: float = 0.0
    largest: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    columns: list[float] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)


def of_all_layers(name: str) -> str:
    """The name of a parameter without the number of its layer."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def measure(folder: Path, kind: str, methods: Sequence[str]) -> list[Line]:
    """Measure the last of the captured steps; parameters are in the order of their units' names.

    Raises ValueError for what is no method, and where one step of parameters was captured, which shows no update.
    """
    made = {method: _made(method) for method in methods}
    sums_of: dict[str, _Sums] = {}
    for unit in load(folder, kind):
        if kind == PARAMETERS and len(unit.steps) < 2:
            raise ValueError(
                f"{folder}: parameters of one step, which shows no update; capture two or more (--steps 20:24)"
            )
        _describe(unit, kind, sums_of)
        for method, compressor in made.items():
            _send(unit, kind, method, compressor, sums_of)
    whole = sum(sums.squares for sums in sums_of.values())
    return [_line(kind, parameter, sums, whole) for parameter, sums in sums_of.items()]


def _made(method: str) -> cc.Compressor:
    made = cc.make(method)
    if made is None:
        raise ValueError(f"{method}: sends what torch sends; choose a method, for instance int4 (fsdp-lab methods)")
    return made


def _describe(unit: Unit, kind: str, sums_of: dict[str, _Sums]) -> None:
    exact = _exact(unit, kind, -1)
    against = exact if kind == GRADIENTS else exact - _exact(unit, kind, -2)
    tensors = (unflatten(flat, unit.segments) for flat in (exact, against))
    for segment, tensor, measured in zip(unit.segments, *tensors, strict=True):
        sums = sums_of.setdefault(of_all_layers(segment.name), _Sums())
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


def _exact(unit: Unit, kind: str, step: int) -> Tensor:
    """``[W, n]`` of a captured step: the mean of the ranks' gradients, or all ranks' parameters."""
    rows = torch.stack([x.float() for x in unit.steps[step]])
    return rows.mean(0) if kind == GRADIENTS else rows


def _send(unit: Unit, kind: str, method: str, compressor: cc.Compressor, sums_of: dict[str, _Sums]) -> None:
    send = arrivals.of_gradients if kind == GRADIENTS else arrivals.of_parameters
    (last,) = collections.deque(send(compressor, unit), maxlen=1)
    for segment, error in zip(unit.segments, unflatten(last.arrived - last.exact, unit.segments), strict=True):
        errors = sums_of[of_all_layers(segment.name)].errors
        errors[method] = errors.get(method, 0.0) + _squares(error)


def _line(kind: str, parameter: str, sums: _Sums, whole: float) -> Line:
    share = sums.squares / whole if whole else 0.0
    errors = {method: math.sqrt(error / sums.of) if sums.of else None for method, error in sums.errors.items()}
    shape = (_median(sums.largest), _median(sums.rows), _median(sums.columns))
    return Line(kind, parameter, sums.tensors, sums.elements, share, *shape, errors)


def _longest(norms: Tensor) -> float:
    return float(norms.max() / norms[norms > 0].median())


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _squares(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())
