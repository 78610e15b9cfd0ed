"""Where every arm stands: its bits in all operations, its change of PPL, and the time of a training behind each link.

An arm is *beaten* at its bits when another one sends no more and loses less, beyond chance (`answers.placed`), and
*beaten everywhere* when it is so by the time of a training behind every link, too. What a check of fairness holds an
error of against an arm's quality or bytes has no place and beats nobody.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from analysis.chart import naming
from analysis.chart.step_times import StepTimes
from analysis.checks.fairness import Judge, arms_meant, held_against
from analysis.checks.finding import QUALITY_AND_BYTES, Finding
from analysis.predict.behind import step_seconds_behind, traffic
from analysis.predict.calibration import Calibration
from analysis.report.opening.answer import Answered, Status
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.reading import Row, is_number
from analysis.statistics import measures
from analysis.statistics.answers import Line, placed, unplaced
from analysis.statistics.names import named
from analysis.statistics.tuning import in_order

RATES: Mapping[str, float] = {"10 Gbit/s": 10e9, "1 Gbit/s": 1e9, "200 Mbit/s": 200e6, "20 Mbit/s": 20e6}
"""Links behind which times are told, in bit/s."""
LONGEST = 72  # letters of an arm's name


@dataclass(frozen=True)
class Place:
    """One arm.

    ``by_operation``: bits a parameter and step of each operation. ``kept``: bytes a parameter that a rank keeps for its
    communication (residuals, momenta of its own, outer parameters); None: not known. ``seconds``: of a whole training
    behind each of `RATES`, by its name; None: not known. ``reaches``: is its mean change of PPL within the margin?
    ``at_links``: its place on the front of quality against that time, as ``Line.front`` is one against bits."""

    answered: Answered
    by_operation: Mapping[str, float]
    kept: float | None
    seconds: Mapping[str, float | None]
    reaches: bool
    at_links: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> ArmRuns:
        """The arm's judged runs, by seed; their ``trials`` are its tuning runs."""
        return self.answered.line.runs

    @property
    def is_beaten_everywhere(self) -> bool:
        """Is it beaten at its bits, and at its time behind every link?"""
        return self.answered.status == "beaten" and all(front == "no" for front in self.at_links.values())

    def time_to_quality(self, rate: str) -> float | None:
        """The seconds of a training that ends within the margin; infinite: it does not; None: not known."""
        return self.seconds[rate] if self.reaches else math.inf


@dataclass(frozen=True)
class Chart:
    """All arms of one comparison across optimizers and local steps, the fewest bits first.

    ``margin``: the share of PPL that a time to quality allows to lose. ``why_no_times``: empty where there are.
    ``timed_apart``: are the steps' times those of rows of their own?"""

    comparison: Comparison
    places: Sequence[Place]
    findings: Sequence[Finding]
    margin: float
    why_no_times: str = ""
    timed_apart: bool = False

    def having(self, *statuses: Status) -> list[Place]:
        """The arms of these statuses, in the chart's order."""
        return [place for place in self.places if place.answered.status in statuses]

    @property
    def beaten_everywhere(self) -> list[Place]:
        """The arms that nobody should choose in this setting."""
        return [place for place in self.places if place.is_beaten_everywhere]


def chart(
    compared: Comparison,
    rows: Sequence[Row],
    calibration: Calibration | None,
    margin: float,
    times: StepTimes | None = None,
) -> Chart:
    """Place all arms. ``rows``: all rows that there are, as runs of others may have shared the machine. ``times``: what
    steps take; None: what they took in the runs that are judged."""
    (comparison,) = named([naming.named(compared)], LONGEST)
    findings = Judge(in_order(rows)).findings(comparison)
    if times is not None:
        findings = [*(one for one in findings if one.concerns != "times"), *times.findings]
    table = unplaced(comparison, shared_seeds=True)
    fair = [not _errors(line.runs, comparison, findings) for line in table]
    table = placed(table, [line.bits if is_fair else None for line, is_fair in zip(table, fair, strict=True)])
    places = []
    for line, is_fair in zip(table, fair, strict=True):
        seconds = _seconds(line.runs, calibration, times)
        places.append(_place(line, is_fair, comparison, seconds, margin))
    places = _at_links(places, fair)
    known = any(seconds is not None for place in places for seconds in place.seconds.values())
    why = "" if known else "no calibration of a machine" if calibration is None else "no row has step times and bytes"
    return Chart(comparison, sorted(places, key=_by_bits), findings, margin, why, times is not None)


def _by_bits(place: Place) -> tuple[float, str]:
    bits = place.answered.line.bits
    return math.inf if bits is None else bits, place.answered.label


def _errors(runs: ArmRuns, comparison: Comparison, findings: Sequence[Finding]) -> list[Finding]:
    heard = held_against(findings, QUALITY_AND_BYTES, arms_meant(runs, comparison))
    return [finding for finding in heard if finding.severity == "error"]


def _place(
    line: Line, is_fair: bool, comparison: Comparison, seconds: Mapping[str, float | None], margin: float
) -> Place:
    status, why = _status(line, is_fair, comparison)
    mean = 0.0 if line.change is None else line.change.mean
    reaches = mean is not None and mean <= margin and not line.runs.failures
    kept = measures.over_seeds(line.runs, _kept)
    by_operation = _by_operation(line.runs)
    # ratios of a row are of the elements exchanged: those of local steps leave out what is not exchanged at all
    line = replace(line, ratio_fp32=None, ratio_bf16=None)
    answered = Answered(line, status, why, _told(by_operation, seconds))
    return Place(answered, by_operation, None if kept is None else kept.mean, seconds, reaches)


def _told(by_operation: Mapping[str, float], seconds: Mapping[str, float | None]) -> list[str]:
    """What the interactive figure tells of an arm, beside its place."""
    bits = ", ".join(f"{name} {value:.3g}" for name, value in by_operation.items())
    took = ", ".join(f"{value:,.0f} s at {name}" for name, value in seconds.items() if value is not None)
    return [*([f"bits: {bits}"] if len(by_operation) > 1 else []), *([f"a training takes {took}"] if took else [])]


def _status(line: Line, is_fair: bool, comparison: Comparison) -> tuple[Status, str]:
    """The status, and what speaks against the arm."""
    if line.runs is comparison.baseline:
        return "baseline", ""
    if line.runs.failures:
        return "failed", f"{len(line.runs.failures)} of {len(line.runs.runs)} runs failed or diverged"
    if not is_fair:
        return "unfair", "a check of fairness holds an error against it"
    if line.front == "yes":
        return "front", ""
    against = f"by {line.beaten_by}" if line.beaten_by else "its bits are not known"
    return ("beaten" if line.front == "no" else "perhaps"), against


def _by_operation(runs: ArmRuns) -> dict[str, float]:
    names = dict.fromkeys(op for row in runs.ended_well for op in row.get("bytes_compressed_by_op") or {})
    bits_by_name = {}
    for name in names:
        bits = measures.over_seeds(runs, partial(measures.bits_per_parameter, direction=name))
        if bits is not None:
            bits_by_name[name] = bits.mean
    return bits_by_name


def _kept(row: Mapping[str, Any]) -> float | None:
    """Bytes a parameter of the model that a rank keeps beside weights, gradients and the optimizer's usual moments."""
    parts = [row.get(name) for name in ("feedback_bytes", "outer_bytes")]
    known, parameters = [part for part in parts if is_number(part)], row.get("num_parameters")
    return math.fsum(known) / parameters if known and is_number(parameters) and parameters else None


def _seconds(runs: ArmRuns, calibration: Calibration | None, times: StepTimes | None) -> dict[str, float | None]:
    """The seconds of a whole training behind each link: the median over the runs that ended well."""
    if calibration is None:
        return dict.fromkeys(RATES)
    by_rate: dict[str, float | None] = {}
    for name, rate in RATES.items():
        found = [
            _training_seconds(
                row, _step_seconds(row) if times is None else times.seconds.get(runs.arm), calibration, rate
            )
            for row in runs.ended_well
        ]
        known = [seconds for seconds in found if seconds is not None]
        by_rate[name] = statistics.median(known) if known else None
    return by_rate


def _step_seconds(row: Row) -> float | None:
    """The row's own mean step; None: not known, or measured behind a link."""
    mean_ms = row.get("step_time_ms_mean")
    return mean_ms / 1e3 if is_number(mean_ms) and row.get("link_rate_asked") is None else None


def _training_seconds(row: Row, step_s: float | None, calibration: Calibration, bits_per_s: float) -> float | None:
    exchanged, steps = traffic(row), row.get("steps")
    if exchanged is None or step_s is None or not is_number(steps):
        return None
    link, free = (calibration.link(row["world_size"], rate) for rate in (bits_per_s / 8, None))
    return steps * step_seconds_behind(step_s, exchanged, link, free)


def _at_links(places: Sequence[Place], fair: Sequence[bool]) -> list[Place]:
    """The places with theirs on the front of quality against time, behind every link of which something is known."""
    fronts: list[dict[str, str]] = [{} for _ in places]
    table = [place.answered.line for place in places]
    for rate in RATES:
        costs = [place.seconds[rate] if is_fair else None for place, is_fair in zip(places, fair, strict=True)]
        if any(cost is not None for cost in costs):
            for by_rate, line in zip(fronts, placed([replace(one, front="-") for one in table], costs), strict=True):
                by_rate[rate] = line.front
    return [replace(place, at_links=by_rate) for place, by_rate in zip(places, fronts, strict=True)]
