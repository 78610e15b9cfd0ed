"""Does an arm support "B bits a parameter and step or fewer, within M % of the baseline's perplexity"?

    python -m analysis.claim FILE... --arm "int4 hadamard + delta" --bits 5 --margin 0.5

prints what speaks for it and against it; exit code 0 when all does: the bits of every run, quality (the one-sided 95 %
upper bound of the paired change of PPL below the margin), an interval narrower than the claim, and a fair comparison.

Fair is what the report calls fair: its verdict on the figure of quality against compression, as far as it is about this
arm, the baseline and the arm in 16 bits that both are quoted against. Only times and other arms are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.checks.fairness import Judge, arms_meant, held_against, verdict
from analysis.checks.finding import QUALITY_AND_BYTES, Finding
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.reading import Row
from analysis.statistics import measures
from analysis.statistics.intervals import Paired, Verdict, paired, within
from analysis.statistics.names import called
from analysis.tables.changes import change_text
from analysis.tables.options import add_options, comparisons_of, rows_of
from analysis.tables.unknown_names import check_arm
from fsdp_lab.settings.flag_values import real
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import printable, unix_endings, user_errors


@dataclass(frozen=True)
class Claim:
    """What a comparison says about one claim.

    ``bits`` are those of the run that sent most; ``margin`` is a share (0.005). ``held_against`` are the errors and
    warnings that bear on the claim, and ``verdict`` sums them up in a line."""

    label: str
    baseline: str
    setting: str
    bits: float | None
    change: Paired
    quality: Verdict
    margin: float
    asked_bits: float
    held_against: list[Finding]
    verdict: str

    @property
    def is_narrow(self) -> bool:
        """Is the two-sided 95 % interval narrower, from end to end, than the margin?"""
        return self.change.width is not None and self.change.width < self.margin

    @property
    def is_fair(self) -> bool:
        """Does nothing that bears on the claim count as an error?"""
        return not any(finding.severity == "error" for finding in self.held_against)

    @property
    def holds(self) -> bool:
        """Do the bits, the quality, the interval and the fairness all support the claim?"""
        few = self.bits is not None and self.bits <= self.asked_bits
        return few and self.quality == "within" and self.is_narrow and self.is_fair


def claim(comparison: Comparison, label: str, bits: float, margin: float, among: Sequence[Row]) -> Claim:
    """What the comparison says about ``label``. ValueError when it has no such arm, or no baseline."""
    runs, base = comparison.arm(label), comparison.baseline
    if base is None:
        raise ValueError(f"no baseline in the comparison ({comparison.setting.label}); give --baseline an arm of it")
    if runs is base:
        raise ValueError(f"{label!r} is the baseline itself; give --baseline another arm")
    return judged(comparison, runs, bits, margin, Judge(among).findings(comparison))


def judged(comparison: Comparison, runs: ArmRuns, bits: float, margin: float, findings: Sequence[Finding]) -> Claim:
    """`claim` for an arm other than the baseline, where what speaks against the comparison is known already."""
    base = comparison.baseline
    if base is None:
        raise ValueError(f"no baseline in the comparison ({comparison.setting.label})")
    sent = [measures.bits(row) for row in runs.ended_well]
    known = [value for value in sent if value is not None]
    change, arms = paired(runs, base), arms_meant(runs, comparison)
    return Claim(
        runs.arm.label,
        base.arm.label,
        comparison.setting.label,
        max(known) if known and len(known) == len(sent) else None,
        change,
        within(change, margin),
        margin,
        bits,
        held_against(findings, QUALITY_AND_BYTES, arms),
        verdict(findings, comparison, QUALITY_AND_BYTES, arms),
    )


def report(claim: Claim) -> str:
    """The claim, and a line for each thing that it rests on."""
    margin, change = 100 * claim.margin, claim.change
    bits = "unknown" if claim.bits is None else f"{claim.bits:.3f} (the run that sent most)"
    upper = "none" if change.upper is None else f"{100 * change.upper:+.3f} % (one-sided, 95 %): {claim.quality}"
    width = "none" if change.width is None else f"{100 * change.width:.3f} % wide, claim {margin:g} %"
    lines = [
        f"{claim.label}: {claim.asked_bits:g} bits or fewer within {margin:g} % of {claim.baseline}'s PPL?",
        f"  setting      {claim.setting}",
        f"  bits         {bits}: {_yes(claim.bits is not None and claim.bits <= claim.asked_bits)}",
        f"  pairs        {change.n}",
        f"  change       {change_text(change, digits=2, percent=True)}",
        f"  upper bound  {upper}",
        f"  interval     {width}: {'narrower' if claim.is_narrow else 'not narrower'}",
        f"  verdict      {claim.verdict}",
        *(f"  {f.severity:12s} {f.what}; {f.advice} [{f.check}]" for f in claim.held_against),
        f"{_yes(claim.holds)}",
    ]
    return "\n".join(map(printable, lines))


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def main(argv: Sequence[str]) -> int:
    """Read the rows, judge the claim, print the judgement; the exit code."""
    parser = program("analysis.claim", __doc__)
    add_options(parser)
    parser.add_argument("--arm", required=True, metavar="LABEL", help="as tables or figures name it")
    parser.add_argument(
        "--bits",
        type=real(above=0),
        required=True,
        help="a parameter and step, both directions (of a divided model: a value of the activations)",
    )
    parser.add_argument("--margin", type=real(above=0), required=True, metavar="PERCENT", help="of the baseline's PPL")
    options = parser.parse_args(argv)
    with user_errors("claim"):
        rows = rows_of(options)
        (comparisons,) = comparisons_of(options, rows)
        label = called(options.arm, comparisons)
        check_arm(label, comparisons)
        having = [c for c in comparisons if any(runs.arm.label == label for runs in c.arms)]
        judged = claim(having[0], label, options.bits, options.margin / 100, rows)
    print(report(judged))
    if len(having) > 1:
        print(f"(the largest of {len(having)} comparisons with this arm; --select for another)", file=sys.stderr)
    return int(not judged.holds)


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
