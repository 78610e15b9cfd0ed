"""Is there a baseline, stock and of 16 bits, that the arms can be held against?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.checks.comparing.wording import arms_of, finding, labels, listed, numbers
from analysis.checks.finding import Finding
from analysis.checks.sixteen_bits import carries_16_bits, compresses_further, sixteen_bit_arm
from analysis.rows.comparing.comparisons import Comparison
from analysis.rows.quality import quality_of
from analysis.rows.reading import Row
from analysis.statistics.intervals import better_than_baseline

_NEAREST = 50  # comparisons, the largest, of which the one is named that differs least


def no_baseline(comparison: Comparison) -> Iterator[Finding]:
    """Without a baseline there is nothing to compare the arms with."""
    if comparison.baseline is None:
        what = f"none of its {len(comparison.arms)} arms is the baseline ({labels(comparison.arms)})"
        yield finding("error", no_baseline, comparison, what, "run none with the same settings, or give --baseline")


def baseline_failed(comparison: Comparison) -> Iterator[Finding]:
    """A baseline without a loss has nothing to pair with."""
    if comparison.baseline is not None and comparison.baseline.failures:
        seeds = ", ".join(str(row["seed"]) for row in comparison.baseline.failures)
        what = f"{comparison.baseline.arm.label} failed with seed {seeds}, which can be paired with nothing"
        yield finding("error", baseline_failed, comparison, what, "find out why and run it again", "quality")


def no_identity_on_gloo(comparison: Comparison) -> Iterator[Finding]:
    """gloo's own reduce-scatter sends everything twice: against `none` alone every method looks twice as good."""
    on_gloo = any(row.get("backend") == "gloo" and _reduces(row) for row in comparison.rows)
    there = [runs.arm for runs in comparison.arms if runs.ended_well]
    if on_gloo and not any(arm.gradients == "identity" and not arm.compresses_parameters for arm in there):
        what = "on gloo stock FSDP2 sends its gradients twice, and no identity run shows what sending them once costs"
        advice = "run identity + identity, and compare times and bytes with the better of the two"
        yield finding("error", no_identity_on_gloo, comparison, what, advice, "times")


def no_16_bit_baseline(comparison: Comparison) -> Iterator[Finding]:
    """Nobody who wants few bytes trains in float32: methods have to be compared with 16 bits in both directions."""
    compressed = [runs for runs in comparison.arms if compresses_further(runs)]
    if compressed and not any(carries_16_bits(runs) and runs.ended_well for runs in comparison.arms):
        of_activations = all(runs.arm.compresses_activations for runs in compressed)
        what = "no arm carries gradients and parameters in 16 bits, which is what anybody has without compression"
        advice = "run bf16 + bf16 with the same settings"
        if of_activations:
            what = "no arm carries activations in 16 bits, which is what anybody has without compression"
            advice = 'run "none, activations bf16 + bf16" with the same settings'
        yield finding("error", no_16_bit_baseline, comparison, what, advice, arms=arms_of(compressed))
    blind = [runs for runs in comparison.arms if any(not row.get("elements_by_op") for row in runs.ended_well)]
    if blind:
        what = f"no elements_by_op, so no ratio against bf16: {labels(blind)}"
        advice = "run again with this version, or migrate the file"
        yield finding("warning", no_16_bit_baseline, comparison, what, advice, "bytes", arms_of(blind))


def seeds_without_16_bits(comparison: Comparison) -> Iterator[Finding]:
    """The 16-bit arm ran on some seeds only; on the others its result is not known."""
    plain, base = sixteen_bit_arm(comparison), comparison.baseline
    if plain is None:
        return
    there = {row["seed"] for row in plain.ended_well}
    compared = {
        runs.arm: runs.runs.keys() & base.runs.keys() if base is not None else set(runs.runs)
        for runs in comparison.arms
        if compresses_further(runs)
    }
    lacking = {arm: sorted(seeds - there) for arm, seeds in compared.items() if seeds - there}
    if lacking:
        named = [f"{arm.label} (seed {numbers(seeds)})" for arm, seeds in lacking.items()]
        what = f"{plain.arm.label} has no finished run with seeds that others are compared over: {listed(named)}"
        advice = f"run {plain.arm.label} with those seeds, or compare over the seeds that it has (--select seed=...)"
        yield finding("error", seeds_without_16_bits, comparison, what, advice, arms=tuple(lacking))


def better_than_uncompressed(comparison: Comparison) -> Iterator[Finding]:
    """An arm that converges faster than the baseline beyond chance: compression adds no information. (Another optimizer
    may be better; across optimizers its arms are left out.)"""
    for suspicion in better_than_baseline(comparison):
        if comparison.arm(suspicion.label).arm.moved_by != "adamw":
            continue
        ratio = quality_of(comparison.rows[0]).ratio
        mean = suspicion.change.mean or 0.0
        chance = f"p {suspicion.p:.2g} after Holm, {suspicion.change.n} pairs"
        what = f"{suspicion.label}: {ratio} {100 * mean:+.2f} % ({chance})"
        advice = "look for another task: other tokens, settings or evaluation; or tune the baseline better"
        arms = (comparison.arm(suspicion.label).arm,)
        yield finding("warning", better_than_uncompressed, comparison, what, advice, "quality", arms)


def alone(compared: Sequence[Comparison]) -> Iterator[Finding]:
    """Runs that a setting keeps apart from the baseline: a failure among them would not be seen, nor would a better
    method."""
    having = [other for other in compared if other.baseline is not None][:_NEAREST]
    for comparison in compared if having else ():
        if comparison.baseline is not None:
            continue
        apart = min((comparison.setting.differences(other.setting) for other in having), key=len)
        what = f"compared with no baseline ({labels(comparison.arms)}), because of {listed(apart)}"
        advice = "run it with the settings of the others, or a baseline with its own"
        yield finding("warning", alone, comparison, what, advice)


def _reduces(row: Row) -> bool:
    """Did FSDP2 reduce gradients? Rows that do not say by operation are older than other ways to divide work."""
    return "reduce_scatter" in (row.get("elements_by_op") or {"reduce_scatter": None})
