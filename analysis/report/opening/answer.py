"""What a comparison answers, judged once: the first paragraph and the first figure show the same verdicts.

An arm's verdict is `analysis.claim`'s of "at least as few bytes as the bar asks, within the bar's margin": nothing is
said to hold here of which that program says no.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.checks import fairness
from analysis.checks.finding import Finding
from analysis.checks.sixteen_bits import compresses_further
from analysis.claim import Claim, judged
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.statistics.answers import MARGIN, RATIO, Line, unplaced
from analysis.tables.changes import change_text

MOST_JUDGED = 150  # arms of a comparison that are judged one by one: those with the fewest bits
NAMED = 3  # arms of a kind
MANY = 20  # arms of which one may hold by chance alone
Status = Literal["baseline", "holds", "wide", "unfair", "undecided", "no", "failed", "front", "perhaps", "beaten"]
"""How an arm is judged, by the bar or (the last three) by its place on the front of quality against a cost."""


@dataclass(frozen=True)
class Answered:
    """One arm with its verdict.

    ``line`` is over the seeds that arm and baseline share, which is where the figure shows it; ``why`` says what speaks
    against the arm, empty when it holds. ``further``: what else the figure tells of it."""

    line: Line
    status: Status
    why: str = ""
    further: Sequence[str] = ()

    @property
    def label(self) -> str:
        """How the arm is written in figures: ``int4 hadamard + delta``."""
        return self.line.label

    @property
    def change(self) -> float:
        """Mean change of PPL in percent; 0 of the baseline, infinite where a run was lost."""
        change = self.line.change
        return 0.0 if change is None or change.mean is None else 100 * change.mean


@dataclass(frozen=True)
class Answer:
    """The verdicts on one comparison, in its order of arms. ``sentences`` are the paragraph."""

    comparison: Comparison
    arms: Sequence[Answered]
    sentences: Sequence[str]


def answer(comparison: Comparison, findings: Sequence[Finding], title: str) -> Answer:
    """Judge every arm; ``title`` names the comparison in the paragraph. Linear in arms and findings."""
    if comparison.baseline is None:
        sentence = f"{title}: there is no baseline, so nothing is claimed; give one with --baseline."
        return Answer(comparison, [], [sentence])
    strict, shared = unplaced(comparison), unplaced(comparison, shared_seeds=True)
    arms = sorted(zip(strict, shared, strict=True), key=lambda two: two[0].bits or math.inf)[:MOST_JUDGED]
    heard = _by_arm(findings)
    answered = [_answered(line, place, comparison, heard) for line, place in arms]
    return Answer(comparison, answered, _sentences(answered, comparison, title))


def _by_arm(findings: Sequence[Finding]) -> dict[Arm | None, list[Finding]]:
    """The findings about each arm; under None those about all."""
    found: dict[Arm | None, list[Finding]] = {}
    for finding in findings:
        for arm in finding.arms or (None,):
            found.setdefault(arm, []).append(finding)
    return found


def _answered(line: Line, place: Line, comparison: Comparison, heard: dict[Arm | None, list[Finding]]) -> Answered:
    if line.runs is comparison.baseline:
        return Answered(place, "baseline")
    meant = [None, *fairness.arms_meant(line.runs, comparison)]
    claim = _claim(line.runs, comparison, [f for arm in meant for f in heard.get(arm, [])])
    if line.runs.failures:
        return Answered(place, "failed", f"{len(line.runs.failures)} of {len(line.runs.runs)} runs failed or diverged")
    if not claim.is_fair:
        return Answered(place, "unfair", claim.verdict)
    if line.bar.startswith("holds"):
        if claim.holds:
            return Answered(place, "holds")
        return Answered(place, "wide", "its interval is wider than the margin")
    if line.bar in ("undecided", "unknown"):
        return Answered(place, "undecided", f"the seeds do not decide it at {100 * MARGIN:g} %")
    return Answered(place, "no", "sends too much" if line.bar == "no: ratio" else "costs more than the margin")


def _claim(runs: ArmRuns, comparison: Comparison, findings: Sequence[Finding]) -> Claim:
    """The claim that the arm holds the bar. Its bytes are judged as a ratio (`Line.bar`), so any bits will do."""
    return judged(comparison, runs, math.inf, MARGIN, findings)


def _sentences(arms: Sequence[Answered], comparison: Comparison, title: str) -> list[str]:
    """The paragraph. Plain and 16-bit arms are what others are compared with, and are not counted."""
    base = comparison.baseline
    baseline = "" if base is None else base.arm.label
    rivals = sorted(
        (one for one in arms if compresses_further(one.line.runs)), key=lambda one: one.line.bits or math.inf
    )
    having = {status: [one for one in rivals if one.status == status] for status in WORDS}
    bar = f"at least {RATIO:g} times fewer bytes than fp32, PPL at most {100 * MARGIN:g} % above that of {baseline}"
    said = [f"{title}: ways to compress that hold the bar ({bar}): {len(having['holds'])} of {len(rivals)}."]
    if having["holds"]:
        best = having["holds"][0]
        said.append(f"Fewest bits among them: {best.label}, {_numbers(best.line)}.")
        count = len(rivals) - len(having["unfair"])
        if count >= MANY:
            said.append(f"One bound in twenty is wrong by chance, and {count} were looked at: try it on new seeds.")
    else:
        said.append("So none is recommended here.")
    if having["wide"]:
        said.append(
            f"Within the bar, but by intervals too wide to be quoted (run more seeds): {_named(having['wide'])}."
        )
    if having["undecided"]:
        said.append(f"The seeds do not decide it for {_named(having['undecided'])}.")
    if having["unfair"]:
        said.append(
            f"Not compared fairly, so nothing is claimed of them (faint in the figure): {len(having['unfair'])}."
        )
    if having["failed"]:
        said.append(f"Failed or diverged in some run: {_named(having['failed'])}.")
    if len(comparison.arms) > len(arms):
        said.append(f"Only the {len(arms)} arms with the fewest bits were judged.")
    said.append("This is known of this setting alone: its model, data, length and learning rate.")
    return said


def _named(some: Sequence[Answered]) -> str:
    more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
    return ", ".join(one.label for one in some[:NAMED]) + more


def _numbers(line: Line) -> str:
    sent = [] if line.bits is None else [f"{line.bits:.2f} bits a parameter and step"]
    fewer = [
        f"{ratio:.1f}x fewer than {dtype}"
        for ratio, dtype in ((line.ratio_fp32, "fp32"), (line.ratio_bf16, "bf16"))
        if ratio is not None
    ]
    change = line.change
    pairs = "" if change is None else f" over {change.n} pairs of runs (95 % interval in brackets)"
    return ", ".join([*sent, " and ".join(fewer), f"PPL {change_text(change, 2, percent=True)}{pairs}"])


def about(one: Answered) -> list[str]:
    """All that the figure says of an arm when it is pointed at, line by line."""
    change = one.line.change
    said = [one.label, _short(one.line)]
    said += [] if change is None else [f"PPL {change_text(change, 2, percent=True)}, {change.n} pairs"]
    return [*said, WORDS[one.status], *([one.why] if one.why else []), *one.further]


def _short(line: Line) -> str:
    bits = "bits unknown" if line.bits is None else f"{line.bits:.3g} bits a parameter and step"
    return bits + ("" if line.ratio_fp32 is None else f", {line.ratio_fp32:,.3g}x fewer than fp32")


WORDS: dict[Status, str] = {
    "baseline": "the baseline",
    "holds": "holds the bar",
    "wide": "within the bar, interval too wide",
    "unfair": "not compared fairly",
    "undecided": "undecided",
    "no": "does not hold the bar",
    "failed": "runs failed",
    "front": "on the front: nothing costs as little and loses less",
    "perhaps": "perhaps on the front: what is better at its cost is not so beyond chance",
    "beaten": "beaten at its cost",
}
