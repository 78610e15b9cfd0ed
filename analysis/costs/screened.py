"""Arms whose cost was measured by trainings, beside what a screen of minutes measured of the same method.

The screen is the file of `experiments.fidelity.update_error`: a line for each method and its settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from analysis.rows.comparing.arms import PLAIN, Arm
from analysis.rows.comparing.canonical import canonical
from analysis.rows.comparing.comparisons import Comparison
from analysis.statistics.intervals import paired

Kind = Literal["gradients", "parameters"]
Line = Mapping[str, Any]
KINDS: tuple[Kind, ...] = ("gradients", "parameters")


@dataclass(frozen=True)
class Screened:
    """One arm. ``nats``: how much higher its validation loss is than the baseline's, the mean over seeds; ``measures``
    by name, 0: nothing is lost; those that the screen does not have are left out."""

    label: str
    method: str
    nats: float
    measures: Mapping[str, float]


def screened(compared: Comparison, lines: Iterable[Line], kind: Kind) -> list[Screened]:
    """The arms that compress this kind of traffic alone, ended on all their seeds, and have a line in the screen.

    A method that never delivers anything (`zero`) is left out: all its measures are at their end."""
    by_method = {(line["method"], canonical(line["config"])): line for line in lines if line["kind"] == kind}
    arms = []
    for runs in compared.rivals:
        of_kind = _alone(runs.arm, kind)
        line = by_method.get(of_kind) if of_kind is not None else None
        if line is None or of_kind is None or of_kind[0] in ("zero", *PLAIN) or compared.baseline is None:
            continue
        change = paired(runs, compared.baseline)
        if change.mean is not None and math.isfinite(change.mean):
            measures = {name: measure(line) for name, measure in MEASURES[kind].items()}
            known = {name: value for name, value in measures.items() if value is not None}
            arms.append(Screened(runs.arm.label, of_kind[0], math.log1p(change.mean), known))
    return arms


def _alone(arm: Arm, kind: Kind) -> tuple[str, str] | None:
    """Method and settings of the one kind of traffic that the arm compresses; None: it compresses another, too."""
    gradients, parameters = (arm.gradients, arm.gradient_settings), (arm.parameters, arm.parameter_settings)
    own, other = (gradients, parameters) if kind == "gradients" else (parameters, gradients)
    is_alone = other[0] in PLAIN and not arm.further and arm.comm_dtype == "fp32" and not arm.takes_local_steps
    return own if is_alone else None


def _update_cosine(line: Line) -> float | None:
    """The cosine of two vectors, from |a - b|^2 / |b|^2 and |a| / |b|."""
    size = line["size"]
    return (size**2 + 1 - line["error"]) / (2 * size) if size else None


def _lacking(value: float | None) -> float | None:
    """What is missing to 1."""
    return None if value is None else 1 - value


MEASURES: Mapping[Kind, Mapping[str, Callable[[Line], float | None]]] = {
    "gradients": {
        "gradients: error |c - g| / |g|": lambda line: line.get("gradient_error"),
        "gradients: 1 - cosine": lambda line: _lacking(line.get("gradient_cosine")),
        "updates: error, energy": lambda line: line["error"],
        "updates: 1 - cosine": lambda line: _lacking(_update_cosine(line)),
        "updates: 1 - length": lambda line: _lacking(line["size"]),
        "momentum behind": lambda line: line["behind"],
    },
    "parameters": {
        "parameters: error, energy": lambda line: line["error"],
        "parameters: error in updates": lambda line: line["size"],
        "updates behind": lambda line: line["behind"],
    },
}


def read_screen(text: str, where: str) -> list[Line]:
    """The lines of a screen's file. ValueError: it is none."""
    needed = {"kind", "method", "config", "error", "size", "behind"}
    lines: list[Line] = []
    for number, written in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(written)
        except json.JSONDecodeError:
            line = None
        if not isinstance(line, dict) or not needed <= line.keys():
            raise ValueError(f"{where}, line {number}: not of a screen; give a file of fidelity update_error --json")
        lines.append(line)
    return lines
