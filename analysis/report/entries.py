"""The figures of a report: what each is called, how it is read, and what makes it.

An entry's ``prepare`` turns its subject (a comparison, a group of them, a calibration) into a `Drawing`, or says by a
ValueError why it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

from analysis.checks.finding import QUALITY_AND_BYTES, Concerns
from analysis.figures import (
    acceptance,
    bandwidth,
    breakeven,
    by_setting,
    comm_share,
    fidelity,
    loss_curves,
    pareto,
    scaling,
    step_time,
    system,
    time_to_quality,
    traffic,
)
from analysis.figures.drawing.data import Datum
from analysis.figures.drawing.style import Style
from analysis.predict.predictor import Predictor
from analysis.rows.comparing.comparisons import Comparison
from analysis.rows.curves.of_arms import Along, TrainingCurves, training_curves
from analysis.statistics.answers import MARGIN
from analysis.statistics.pareto import Traffic, points
from analysis.statistics.time_to_quality import MeasuredSteps, measured_rates, times

S = TypeVar("S")


@dataclass(frozen=True)
class Drawing:
    """A figure's numbers, and the function that draws them from a style and a foot line."""

    data: Sequence[Datum]
    draw: Callable[[Style, str], Figure]
    complaints: Sequence[str] = ()  # what is missing in it


@dataclass(frozen=True)
class Entry(Generic[S]):
    """One figure of the report.

    ``name`` is that of its files, ``about`` says how to read it, ``concerns`` which findings its foot line sums up."""

    name: str
    title: str
    about: str
    concerns: tuple[Concerns, ...]
    prepare: Callable[[S], Drawing]


@dataclass(frozen=True)
class Machine:
    """A calibrated machine at one model and world size, and the cells measured on it, if any."""

    predictor: Predictor
    model: str
    cells: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Behind:
    """A comparison, the steps of all rows (also those behind links), and the predictor of its model's steps, if there
    is one."""

    comparison: Comparison
    steps: MeasuredSteps
    predictor: Predictor | None


def _plain(module: Any) -> Callable[[Any], Drawing]:
    """The function that makes the drawing of a figure with `data` and `draw`."""

    def prepare(subject: Any) -> Drawing:
        data = module.data(subject)
        return Drawing(data, lambda style, foot: module.draw(data, style, foot))

    return prepare


def _pareto(kind: Traffic) -> Callable[[Comparison], Drawing]:
    def prepare(comparison: Comparison) -> Drawing:
        known = points(comparison, kind)
        percent = "change of validation PPL, %"
        data = [
            Datum(p.label, p.family, percent, 100 * p.change, _percent(p.low), _percent(p.high), p.pairs, p.ratio)
            for p in known
        ]
        return Drawing(data, lambda style, foot: pareto.draw(known, style, traffic=kind, foot=foot))

    return prepare


def _acceptance(comparison: Comparison) -> Drawing:
    points = acceptance.points(comparison)
    data = [Datum(p.label, p.family, acceptance.TAU, p.tau, p.low, p.high, p.runs, p.bits) for p in points]
    return Drawing(data, lambda style, foot: acceptance.draw(points, style, foot))


def _by_setting(group: Sequence[Comparison]) -> Drawing:
    points = by_setting.points(group)
    data = [
        Datum(p.arm, p.family, f"{by_setting.CHANGE} ({p.setting})", p.change, p.low, p.high, p.pairs) for p in points
    ]
    return Drawing(data, lambda style, foot: by_setting.draw(points, style, foot))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _time_to_quality(behind: Behind) -> Drawing:
    rates = set(measured_rates(behind.steps, behind.comparison)) | set(LINKS if behind.predictor else ())
    ordered = sorted(rates, key=lambda rate: math.inf if rate is None else rate)
    known = times(behind.comparison, behind.steps, ordered, predictor=behind.predictor)
    title = f"time to PPL {known.target_ppl:.4g}, s"
    data = [
        Datum(t.arm.label, t.arm.family, f"{title} ({t.source})", t.seconds, t.low, t.high, x=t.rate or math.inf)
        for t in known.times
    ]
    return Drawing(data, lambda style, foot: time_to_quality.draw(known, style, foot=foot), known.left_out)


def _break_even_of_rows(comparison: Comparison) -> Drawing:
    data = breakeven.of_comparison(comparison)
    return Drawing(data, lambda style, foot: breakeven.draw(data, style, foot))


def _break_even_of_machine(machine: Machine) -> Drawing:
    data = breakeven.of_calibration(machine.predictor)
    return Drawing(data, lambda style, foot: breakeven.draw(data, style, foot))


def _bandwidth(series: Sequence[bandwidth.Series]) -> Drawing:
    data = [
        Datum(one.label, one.family, f"step, ms ({kind})", ms, x=rate)
        for one in series
        for kind, points in (("predicted", one.predicted), ("measured", one.measured))
        for rate, ms in points
    ]
    return Drawing(data, lambda style, foot: bandwidth.draw(series, style, "", foot))


def _bandwidth_of_machine(machine: Machine) -> Drawing:
    return _bandwidth(bandwidth.of_calibration(machine.predictor, machine.model, machine.cells))


def _bandwidth_of_rows(group: Sequence[Comparison]) -> Drawing:
    return _bandwidth(bandwidth.of_comparisons(group))


def _loss(quantity: str, along: Along) -> Callable[[Comparison], Drawing]:
    def prepare(comparison: Comparison) -> Drawing:
        smooth = SMOOTH if quantity == "train_loss" else 1
        known = training_curves(comparison, quantity, along, smooth)
        if not any(len(curve.x) > 1 for curve in known.curves):
            raise ValueError(f"no curve has {quantity} at more than one step; train with --eval_steps 50")
        base = "" if comparison.baseline is None else comparison.baseline.arm.label

        def draw(style: Style, foot: str) -> Figure:
            return loss_curves.draw(
                known.curves, style, quantity=quantity, along=along, smooth=smooth, baseline=base, foot=foot
            )

        return Drawing(_data_of_curves(known, loss_curves.Y_LABELS[quantity]), draw, known.left_out)

    return prepare


def _fidelity(comparison: Comparison) -> Drawing:
    by_quantity, why = {}, []
    for quantity in fidelity.QUANTITIES:
        try:
            by_quantity[quantity] = training_curves(comparison, quantity)
        except ValueError as error:
            why.append(str(error))
    if not by_quantity:
        raise ValueError(why[0])
    data = [one for name, some in by_quantity.items() for one in _data_of_curves(some, fidelity.QUANTITIES[name])]
    drawn = {name: some.curves for name, some in by_quantity.items()}
    complaints = list(dict.fromkeys(text for some in by_quantity.values() for text in some.left_out))
    return Drawing(data, lambda style, foot: fidelity.draw(drawn, style, foot=foot), complaints)


def _data_of_curves(known: TrainingCurves, quantity: str) -> list[Datum]:
    """The numbers of curves; low and high are the least and the greatest seed."""
    return [
        Datum(curve.arm.label, curve.arm.family, quantity, mean, low, high, curve.seeds, x)
        for curve in known.curves
        for x, mean, low, high in zip(curve.x, curve.mean, curve.low, curve.high, strict=True)
    ]


LINKS = (1e8, 2e8, 1e9, 1e10, None)  # bit/s, for predictions
SMOOTH = 5  # points of a curve of training losses, one every log_interval steps
OF_COMPARISON: tuple[Entry[Comparison], ...] = (
    Entry(
        "quality_against_compression",
        "Quality against compression, all traffic",
        "Change of validation perplexity against the baseline, seed by seed, over the ratio of float32 bytes to those "
        "sent. Bars: 95 % intervals; stepped line: Pareto front of the means; thin lines: one method's strengths; "
        "shaded: ratio of 2 or more within 1 %. Where some arms compress both directions, those that compress one are "
        "in its own figure.",
        QUALITY_AND_BYTES,
        _pareto("all"),
    ),
    Entry(
        "quality_against_gradient_compression",
        "Quality against compression, gradients alone",
        "The same with the ratio of the reduce-scatter, for arms whose parameters go as they are.",
        QUALITY_AND_BYTES,
        _pareto("gradients"),
    ),
    Entry(
        "quality_against_parameter_compression",
        "Quality against compression, parameters alone",
        "The same with the ratio of the all-gather, for arms whose gradients go as they are.",
        QUALITY_AND_BYTES,
        _pareto("parameters"),
    ),
    Entry(
        "step_time",
        "Step time and tokens/s",
        "Mean step in its parts, mean over seeds; whiskers: 95 % interval of the step. Transfer includes waiting for a "
        "slower rank, except without hooks (none), where a profile gives the transfers alone.",
        ("times",),
        _plain(step_time),
    ),
    Entry(
        "communication_share",
        "Share of communication",
        "What share of the step goes to transfers (with waiting) and to the codec.",
        ("times",),
        _plain(comm_share),
    ),
    Entry(
        "bytes",
        "Bytes by direction and kind",
        "Bits that a rank sends for a parameter in a step, all traffic: 8 x bytes / parameters x W / (W - 1). Uncoded: "
        "collectives without a hook.",
        ("bytes",),
        _plain(traffic),
    ),
    Entry(
        "break_even",
        "Break-even bandwidth (predicted)",
        "The link below which the bytes saved take longer to send than encoding and decoding take: from the rows' "
        "bytes and codec times, with nothing overlapped and the link filled. Methods without a mark save nothing.",
        ("times", "bytes"),
        _break_even_of_rows,
    ),
    Entry(
        "loss_curves",
        "Training loss",
        f"Mean over seeds, smoothed over {SMOOTH} points of the curve; field: least and greatest seed. Second plot: "
        "above the baseline, seed by seed.",
        ("quality",),
        _loss("train_loss", "step"),
    ),
    Entry(
        "validation_loss",
        "Validation loss over training time",
        "Mean over seeds at each evaluation, not smoothed; field: least and greatest seed.",
        ("quality", "times"),
        _loss("val_loss", "train_seconds"),
    ),
    Entry(
        "gradient_error",
        "How far the gradient is from the exact one",
        "Relative error and cosine of the reduced gradient against the exact mean, and the norm of what feedback keeps "
        "back over that of the gradients, at sampled steps.",
        ("quality",),
        _fidelity,
    ),
)
OF_DRAFTS: tuple[Entry[Comparison], ...] = (
    Entry(
        "acceptance_length",
        "Acceptance length against bytes",
        "Tokens a pass of the target on held-out questions, mean over seeds, over the bits that a rank sends for a "
        "parameter in a step. Bars: 95 % intervals of the difference to the baseline (the line), seed by seed. Hollow: "
        "parameters are compressed, too.",
        QUALITY_AND_BYTES,
        _acceptance,
    ),
    *(entry for entry in OF_COMPARISON if "quality" not in entry.concerns),
)
OF_LINKED: tuple[Entry[Behind], ...] = (
    Entry(
        "time_to_quality",
        "Time to quality behind each link",
        f"Steps to a perplexity {100 * MARGIN:g} % above the highest final one of the baseline's runs, times the time "
        "of a step behind the link: measured where rows of the same work ran there, else predicted from the "
        "calibration. At the top: never.",
        ("quality", "times"),
        _time_to_quality,
    ),
)
OF_WORLDS: tuple[Entry[Sequence[Comparison]], ...] = (
    Entry(
        "world_sizes",
        "Scaling with the number of ranks",
        "Means over seeds with 95 % intervals. A rank's batch is the same at every world size. Change: against "
        "the baseline at as many ranks, seed by seed. Hollow: virtual ranks in one process, which have no times.",
        ("quality", "times", "bytes"),
        _plain(scaling),
    ),
)
OF_SETTINGS: tuple[Entry[Sequence[Comparison]], ...] = (
    Entry(
        "settings",
        "What each arm costs in each setting",
        "Change of validation perplexity against the baseline of the same setting, seed by seed, with 95 % intervals. "
        "Settings are named by what most others have not. Shaded: within 1 %.",
        ("quality",),
        _by_setting,
    ),
)
OF_LINKS: tuple[Entry[Sequence[Comparison]], ...] = (
    Entry(
        "links",
        "Step time against bandwidth (measured)",
        "Median step behind each emulated link, median over seeds.",
        ("times",),
        _bandwidth_of_rows,
    ),
)
OF_MACHINE: tuple[Entry[Machine], ...] = (
    Entry(
        "predicted_step_time",
        "Step time against bandwidth (predicted)",
        "Lines: the step model with this machine's calibration. Points: measured, of a link matrix.",
        ("times",),
        _bandwidth_of_machine,
    ),
    Entry(
        "predicted_break_even",
        "Break-even bandwidth (predicted by the step model)",
        "The link below which a step is shorter than with none, or with bf16 in both directions, says the step model.",
        ("times",),
        _break_even_of_machine,
    ),
)
SYSTEM: Entry[None] = Entry(
    "system",
    "Where compression sits in FSDP2's step",
    "Parameters are gathered before forward and again before backward, gradients reduced after it.",
    (),
    lambda _: Drawing([], lambda style, _: system.draw(style)),
)
