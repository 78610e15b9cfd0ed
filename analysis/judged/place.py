"""Where a judged method stands among the reference rows: its change of PPL and its bits beside theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.checks.fairness import Judge, arms_meant, held_against
from analysis.checks.finding import QUALITY_AND_BYTES, Finding
from analysis.checks.sixteen_bits import carries_16_bits, is_plain
from analysis.rows.comparing.comparisons import ArmRuns, Comparison, comparisons
from analysis.rows.reading import Row, read
from analysis.statistics.intervals import paired
from analysis.statistics.measures import bits_per_parameter, over_seeds
from analysis.statistics.pareto import Point, points

GRADIENTS = "reduce_scatter"
UNLIKE = 0.1  # share by which bits in training may differ from those of captured gradients


@dataclass(frozen=True)
class Neighbour:
    """One arm: gradient bits a parameter and step, and its change of PPL (0.01 is 1 % worse) with its interval."""

    label: str
    bits: float
    change: float
    low: float | None
    high: float | None
    pairs: int
    is_judged: bool = False


@dataclass(frozen=True)
class Place:
    """The judged method among the reference arms of its setting.

    ``points`` are for the figure. ``neighbours`` go by bits. ``digits`` says whether this machine's runs without
    compression give the reference rows' digits. ``findings``: what makes the comparison on this machine unfair.
    """

    judged: Neighbour
    points: Sequence[Point]
    neighbours: Sequence[Neighbour]
    digits: str
    setting: str
    findings: Sequence[Finding] = field(default_factory=tuple)

    @property
    def not_worse_at_fewer_bits(self) -> list[str]:
        """Reference arms with as few bits or fewer whose mean change is as small or smaller."""
        mine = self.judged
        others = [one for one in self.neighbours if not one.is_judged]
        return [one.label for one in others if one.bits <= mine.bits and one.change <= mine.change]


def place(label: str, rows: Path, baseline: Path, reference: Path) -> Place:
    """The place of the arm ``label``. ValueError when there are no rows of it, or none without compression."""
    own = [row for path in (baseline, rows) if path.exists() for row in read([path]).rows]
    mine = next((c for c in comparisons(own) if c.baseline is not None and _has(c, label)), None)
    if mine is None:
        raise ValueError(f"{rows}: no finished training of {label!r} beside one without compression")
    seeds = set(mine.arm(label).runs)
    runs, base = mine.arm(label), _of_seeds(mine.baseline, seeds)
    compared = Comparison(mine.setting, [base, runs], base)
    drawn = [replace(p, is_baseline=False) for p in points(compared, "gradients") if not p.is_baseline]
    judged = _neighbour(runs, base, is_judged=True)
    if judged is None:
        raise ValueError(f"{rows}: {label!r} has lost a run, or counted no bytes")
    whole = _reference(reference, mine)
    known = None if whole is None else _of_gradients(whole)
    others = [] if known is None else [one for one in (_of(known, r) for r in known.rivals) if one is not None]
    near = sorted([judged, *others], key=lambda one: -one.bits)
    return Place(
        judged,
        [*(points(known, "gradients") if known is not None else []), *drawn],
        near,
        _digits(base, known),
        mine.setting.label,
        _findings(own, compared, runs, whole, seeds),
    )


def otherwise_in_training(facts: Mapping[str, Any], place: Place | None) -> list[list[str]]:
    """An objection where the trainings' bits are not those of captured gradients of the same model; none elsewhere."""
    errors = facts["facts"].get("errors", ())
    real = [one["bits"] for one in errors if one["kind"] == "error" and one["judged"] and one["data"] == "real"]
    if place is None or not real or abs(place.judged.bits / real[0] - 1) <= UNLIKE:
        return []
    text = (
        f"in training it sent {place.judged.bits:.3g} bits, for captured gradients of the same model {real[0]:.3g}: "
        "its first steps or its sizes differ, or it behaves otherwise when it is judged"
    )
    return [["warning", text]]


def _has(comparison: Comparison, label: str) -> bool:
    try:
        comparison.arm(label)
    except ValueError:
        return False
    return True


def _of_seeds(runs: ArmRuns | None, seeds: set[int]) -> ArmRuns:
    assert runs is not None
    return ArmRuns(runs.arm, {seed: row for seed, row in runs.runs.items() if seed in seeds}, runs.tuned)


def _reference(file: Path, mine: Comparison) -> Comparison | None:
    """The comparison of the reference rows in the same setting; None where there is none."""
    rows: Sequence[Row] = read([file]).rows if file.exists() else []
    for comparison in comparisons(rows):
        if comparison.baseline is not None and comparison.setting == mine.setting:
            return comparison
    return None


def _of_gradients(comparison: Comparison) -> Comparison:
    """The same without arms that compress parameters."""
    arms = [runs for runs in comparison.arms if not runs.arm.compresses_parameters]
    return Comparison(comparison.setting, arms, comparison.baseline)


def _findings(
    own: Sequence[Row], compared: Comparison, runs: ArmRuns, whole: Comparison | None, seeds: set[int]
) -> list[Finding]:
    """What is held against the judged arm; plain and 16-bit arms are those of the reference rows."""
    known = [] if whole is None else [one for one in whole.rivals if is_plain(one.arm) or carries_16_bits(one)]
    with_plain = Comparison(
        compared.setting, [*compared.arms, *(_of_seeds(one, seeds) for one in known)], compared.baseline
    )
    return held_against(Judge(own).findings(with_plain), QUALITY_AND_BYTES, arms_meant(runs, with_plain))


def _of(comparison: Comparison, runs: ArmRuns) -> Neighbour | None:
    assert comparison.baseline is not None
    return _neighbour(runs, comparison.baseline)


def _neighbour(runs: ArmRuns, baseline: ArmRuns, is_judged: bool = False) -> Neighbour | None:
    change = paired(runs, baseline)
    bits = over_seeds(runs, lambda row: bits_per_parameter(row, GRADIENTS))
    if bits is None or change.mean is None or change.lost:
        return None
    return Neighbour(runs.arm.label, bits.mean, change.mean, change.low, change.high, change.n, is_judged)


def _digits(base: ArmRuns, known: Comparison | None) -> str:
    """Does a run without compression end at the same loss here as in the reference rows?"""
    if known is None or known.baseline is None:
        return "there are no reference rows of this setting"
    theirs, ours = known.baseline.losses, base.losses
    shared = [seed for seed in ours if theirs.get(seed) is not None and ours[seed] is not None]
    if not shared:
        return "no seed is in both this machine's and the reference rows"
    same = [seed for seed in shared if theirs[seed] == ours[seed]]
    if len(same) == len(shared):
        return f"{len(same)} of {len(shared)} runs without compression end at the reference rows' very digits"
    off = max(abs((theirs[s] or 0.0) - (ours[s] or 0.0)) for s in shared)
    return (
        f"runs without compression end up to {off:.4f} nats away from the reference rows (another processor, or a "
        "later version of the trainer): each method is compared with the baseline of its own machine"
    )
