"""What is wrong with a comparison. A check takes one `Comparison` and names what it found by its own name.

A check speaks once, with the arms it is about, however many they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from analysis.arms import Arm, ArmRuns, Comparison, failed, mean_loss
from analysis.finding import Concerns, Finding, Severity
from analysis.quality import loss_of, quality_of
from analysis.rows import Row, is_number
from analysis.statistics import better_than_baseline

Check = Callable[[Comparison], Iterator[Finding]]
ENOUGH_SEEDS = 3
HALF_DTYPES = ("bf16", "fp16")
TOKEN_COLUMNS = ("dataset", "dataset_tokens", "max_length", "val_tokens", "tau_prompts", "eval_weights")
_MEETING_S = 2.0  # overlap that rounding to whole seconds and a program's end may cause
_NAMED = 4  # of a long list


def one_seed(comparison: Comparison) -> Iterator[Finding]:
    """One seed says nothing about the next."""
    arms = [runs for runs in comparison.arms if len(runs.runs) == 1]
    if arms:
        what = f"one seed, so no interval: {_labels(arms, comparison)}"
        yield _finding("error", one_seed, comparison, what, f"run {ENOUGH_SEEDS} seeds or more", "quality")


def few_seeds(comparison: Comparison) -> Iterator[Finding]:
    """With two seeds the interval is 12.7 standard errors to each side, with three 4.3."""
    arms = [runs for runs in comparison.arms if 1 < len(runs.runs) < ENOUGH_SEEDS]
    if arms:
        what = f"fewer than {ENOUGH_SEEDS} seeds: {_labels(arms, comparison)}"
        yield _finding("warning", few_seeds, comparison, what, f"run {ENOUGH_SEEDS} seeds or more", "quality")


def no_baseline(comparison: Comparison) -> Iterator[Finding]:
    """Nothing to compare with."""
    if comparison.baseline is None:
        what = f"none of its {len(comparison.arms)} arms is the baseline ({_labels(comparison.arms)})"
        yield _finding("error", no_baseline, comparison, what, "run none with the same settings, or give --baseline")


def baseline_failed(comparison: Comparison) -> Iterator[Finding]:
    """A baseline without a loss has nothing to pair with."""
    if comparison.baseline is not None and comparison.baseline.failures:
        seeds = ", ".join(str(row["seed"]) for row in comparison.baseline.failures)
        what = f"{comparison.baseline.arm.label} failed with seed {seeds}, which can be paired with nothing"
        yield _finding("error", baseline_failed, comparison, what, "find out why and run it again", "quality")


def no_identity_on_gloo(comparison: Comparison) -> Iterator[Finding]:
    """gloo's own reduce-scatter sends everything twice: against `none` alone every method looks twice as good."""
    on_gloo = any(row.get("backend") == "gloo" for row in _rows(comparison))
    there = [runs.arm for runs in comparison.arms if runs.ended_well]
    if on_gloo and not any(arm.gradients == "identity" and not arm.compresses_parameters for arm in there):
        what = "on gloo stock FSDP2 sends its gradients twice, and no identity run shows what sending them once costs"
        advice = "run identity + identity, and compare times and bytes with the better of the two"
        yield _finding("error", no_identity_on_gloo, comparison, what, advice, "times")


def no_16_bit_baseline(comparison: Comparison) -> Iterator[Finding]:
    """float32 is nobody's alternative: 16 bits in both directions are."""
    compressed = [runs for runs in comparison.arms if not _is_plain(runs.arm) and not _is_16_bit(runs)]
    if compressed and not any(_is_16_bit(runs) and runs.ended_well for runs in comparison.arms):
        what = "no arm carries gradients and parameters in 16 bits, which is what anybody has without compression"
        yield _finding("error", no_16_bit_baseline, comparison, what, "run bf16 + bf16 with the same settings")
    blind = [runs for runs in comparison.arms if any(not row.get("elements_by_op") for row in runs.ended_well)]
    if blind:
        what = f"no elements_by_op, so no ratio against bf16: {_labels(blind)}"
        advice = "run again with this version, or migrate the file"
        yield _finding("warning", no_16_bit_baseline, comparison, what, advice, "bytes")


def different_tokens(comparison: Comparison) -> Iterator[Finding]:
    """All arms must see the same tokens, as many of them, and be judged by the same ones.

    As many: within a seed, since conversations of another order fill other batches.
    """
    advice = "do not compare: run the odd ones again with the data of the others"
    for name in TOKEN_COLUMNS:
        values = _distinct(row.get(name) for row in _finished(comparison))
        if len(values) > 1:
            yield _finding("error", different_tokens, comparison, f"{name} differs: {_listed(values)}", advice)
    for seed, rows in _by_seed(comparison).items():
        values = _distinct(row.get("tokens_seen") for row in rows)
        if len(values) > 1:
            what = f"tokens_seen differs among the runs of seed {seed}: {_listed(values)}"
            yield _finding("error", different_tokens, comparison, what, advice)


def other_stream(comparison: Comparison) -> Iterator[Finding]:
    """Runs of one seed must train on the same sequences in the same order; rows without a digest cannot say."""
    by_seed = _by_seed(comparison)
    unlike = [seed for seed, rows in by_seed.items() if len(_distinct(r.get("data_digest") for r in rows)) > 1]
    if unlike:
        seeds = ", ".join(map(str, unlike))
        what = f"data_digest differs among the runs of seed {seeds}: other sequences, or another order"
        advice = "do not compare: find out which settings, files or versions dealt other data"
        yield _finding("error", other_stream, comparison, what, advice)
    silent = [runs for runs in comparison.arms if any(not row.get("data_digest") for row in runs.ended_well)]
    if silent:
        what = f"unknown whether the runs saw the same sequences, no data_digest: {_labels(silent, comparison)}"
        advice = "nothing, if settings and version are the same; else run again with this version"
        yield _finding("warning", other_stream, comparison, what, advice)


def seeds_not_shared(comparison: Comparison) -> Iterator[Finding]:
    """Only runs of the same seed have the same initial weights and order of data."""
    base = comparison.baseline
    if base is None:
        return
    alone = [runs for runs in comparison.rivals if not runs.runs.keys() & base.runs.keys()]
    more = [runs for runs in comparison.rivals if runs not in alone and runs.runs.keys() - base.runs.keys()]
    advice = f"run {base.arm.label} with those seeds"
    if alone:
        what = f"no seed in common with {base.arm.label}: {_labels(alone)}"
        yield _finding("error", seeds_not_shared, comparison, what, advice, "quality")
    if more:
        what = f"seeds that {base.arm.label} has no run of, which are in no paired figure: {_labels(more)}"
        yield _finding("warning", seeds_not_shared, comparison, what, advice, "quality")


def missing_runs(comparison: Comparison) -> Iterator[Finding]:
    """A run that is not there may be one that went wrong: it counts as infinitely bad until it is."""
    base = comparison.baseline
    wanted = set(base.runs) if base is not None else set().union(*(runs.runs for runs in comparison.arms))
    fewer = [(runs, sorted(wanted - runs.runs.keys())) for runs in comparison.arms if wanted & runs.runs.keys()]
    lacking = [f"{runs.arm.label} (seed {', '.join(map(str, seeds))})" for runs, seeds in fewer if seeds]
    if lacking:
        what = f"runs are missing, dropped or never made: {_listed(lacking)}"
        advice = "run them, or compare over shared seeds only (--select seed=...), and say so"
        yield _finding("error", missing_runs, comparison, what, advice, "quality")


def repeated_runs(comparison: Comparison) -> Iterator[Finding]:
    """Several runs of one seed, of which the last that ended well stands for it: a choice that must be seen."""
    retried = [
        runs for runs in comparison.arms if any(failed(r) and r.get("status") != "preempted" for r in runs.repeated)
    ]
    if retried:
        what = f"runs that failed and were made again, of which the one that ended well counts: {_labels(retried)}"
        advice = "find out whether the machine or the method failed; if the method, count it as failed"
        yield _finding("warning", repeated_runs, comparison, what, advice, "quality")
    unlike = []
    for runs in comparison.arms:
        again = [row for row in runs.repeated if not failed(row)]
        if any(loss_of(row) != loss_of(runs.runs[row["seed"]]) for row in again):
            unlike.append(runs)
    if unlike:
        quality = quality_of(unlike[0].repeated[0]).column
        what = f"the same seed again with another {quality}: {_labels(unlike)}"
        advice = "find what changed between the runs; the last one is used"
        yield _finding("warning", repeated_runs, comparison, what, advice, "quality")


def unequal_tuning(comparison: Comparison) -> Iterator[Finding]:
    """Whoever may choose among more values wins more often."""
    counts = _distinct_counts(comparison)
    advice = "try the same values for every arm, the baseline among them, and say how many"
    if len(counts) > 1:
        tried = "; ".join(f"{count}: {_labels(arms)}" for count, arms in sorted(counts.items()))
        yield _finding("error", unequal_tuning, comparison, f"arms had unequal numbers of candidates ({tried})", advice)
    chosen = _distinct(runs.tuned for runs in comparison.arms)
    if set(counts) == {1} and len(chosen) > 1:
        what = f"arms differ in what was tuned, and nothing else was tried: {_listed(chosen)}"
        yield _finding("error", unequal_tuning, comparison, what, advice)


def best_at_the_edge(comparison: Comparison) -> Iterator[Finding]:
    """The best of the values tried is the largest or smallest: a better one may lie beyond."""
    at_edge = []
    for runs in comparison.arms:
        for name, value in runs.tuned.items():
            tried = [json.loads(dict(values)[name]) for values in runs.trials]
            if len(tried) > 1 and all(map(is_number, tried)) and value in (min(tried), max(tried)):
                at_edge.append(f"{runs.arm.label} ({name} {value:g})")
    if at_edge:
        what = f"the best value lies on the edge of those tried: {_listed(at_edge)}"
        yield _finding("warning", best_at_the_edge, comparison, what, "try values beyond it", "quality")


def tuned_otherwise(comparison: Comparison) -> Iterator[Finding]:
    """The values with the most seeds stand for an arm; on the seeds they share, others did better."""
    beaten = []
    for runs in comparison.arms:
        for trial in runs.trials.values():
            shared = trial.keys() & runs.runs.keys()
            if shared and mean_loss(trial[s] for s in shared) < mean_loss(runs.runs[s] for s in shared):
                beaten.append(runs)
                break
    if beaten:
        what = f"another candidate did better on the seeds that it was tried with: {_labels(beaten)}"
        yield _finding("warning", tuned_otherwise, comparison, what, "run that one with all seeds", "quality")


def mixed_hardware(comparison: Comparison) -> Iterator[Finding]:
    """Times of one machine say nothing about another's."""
    rows = _finished(comparison)
    for name in ("backend", "cpu", "cores", "gpus", "host"):
        values = _distinct(({**row, **(row.get("hardware") or {})}).get(name) for row in rows)
        severity: Severity = "warning" if name == "host" else "error"  # several machines of one kind
        if len(values) > 1:
            advice = "compare times within one machine only"
            what = f"{name} differs: {_listed(values)}"
            yield _finding(severity, mixed_hardware, comparison, what, advice, "times")


def mixed_versions(comparison: Comparison) -> Iterator[Finding]:
    """Another commit or library may train otherwise."""
    rows = _finished(comparison)
    names = dict.fromkeys(name for row in rows for name in row.get("versions") or {})
    seen = {name: _distinct((row.get("versions") or {}).get(name) for row in rows) for name in names}
    seen |= {"git_commit": _distinct((row.get("git_commit") or "")[:10] or None for row in rows)}
    for name, values in seen.items():
        if len(values) > 1:
            advice = "run all arms with one commit and one environment"
            yield _finding("warning", mixed_versions, comparison, f"{name} differs: {_listed(values)}", advice)


def dirty_checkout(comparison: Comparison) -> Iterator[Finding]:
    """Nobody can get the program back that made these rows."""
    dirty = [row for row in _finished(comparison) if row.get("git_dirty")]
    if dirty:
        what = f"{len(dirty)} runs of a checkout with uncommitted changes: {_listed([r['run_name'] for r in dirty])}"
        yield _finding("warning", dirty_checkout, comparison, what, "commit first, then run")


def other_schedule(comparison: Comparison) -> Iterator[Finding]:
    """What hides behind computation depends on prefetching and resharding, so both are for all arms or for none."""
    for name in ("prefetch", "reshard"):
        values = _distinct(getattr(runs.arm, name) for runs in comparison.arms)
        if len(values) > 1:
            advice = "give every arm, the baselines too, the same fsdp_prefetch and fsdp_reshard"
            what = f"fsdp_{name} differs: {_listed(values)}"
            yield _finding("error", other_schedule, comparison, what, advice, "times")


def better_than_uncompressed(comparison: Comparison) -> Iterator[Finding]:
    """An arm that converges faster than the baseline beyond chance: compression adds no information."""
    for suspicion in better_than_baseline(comparison):
        ratio = quality_of(_rows(comparison)[0]).ratio
        mean = suspicion.change.mean or 0.0
        chance = f"p {suspicion.p:.2g} after Holm, {suspicion.change.n} pairs"
        what = f"{suspicion.label}: {ratio} {100 * mean:+.2f} % ({chance})"
        advice = "look for another task: other tokens, settings or evaluation; or tune the baseline better"
        yield _finding("warning", better_than_uncompressed, comparison, what, advice, "quality")


CHECKS: tuple[Check, ...] = (
    no_baseline,
    one_seed,
    few_seeds,
    no_16_bit_baseline,
    no_identity_on_gloo,
    different_tokens,
    other_stream,
    seeds_not_shared,
    missing_runs,
    baseline_failed,
    repeated_runs,
    unequal_tuning,
    best_at_the_edge,
    tuned_otherwise,
    mixed_hardware,
    mixed_versions,
    dirty_checkout,
    other_schedule,
    better_than_uncompressed,
)


def alone(comparison: Comparison, others: Sequence[Comparison]) -> Iterator[Finding]:
    """Runs that some setting keeps from the baseline: a failure among them would go unseen, a rival unjudged."""
    having = [other for other in others if other.baseline is not None]
    if comparison.baseline is None and having:
        apart = min((comparison.setting.differences(other.setting) for other in having), key=len)
        what = f"compared with no baseline ({_labels(comparison.arms)}), because of {_listed(apart)}"
        advice = "run it with the settings of the others, or a baseline with its own"
        yield _finding("warning", alone, comparison, what, advice)


def overlapping_runs(comparison: Comparison, among: Iterable[Row]) -> Iterator[Finding]:
    """Runs of the comparison that shared their machine with another run of ``among``: their times measure both."""
    mine = {id(row) for row in _finished(comparison) if row.get("step_time_ms_p50") is not None}
    met: dict[str, str] = {}
    by_host: dict[str, list[tuple[datetime, datetime, Row]]] = {}
    for row in among:
        span = _span(row)
        host = (row.get("hardware") or {}).get("host")
        if span is not None and host:
            by_host.setdefault(host, []).append((*span, row))
    for spans in by_host.values():
        spans.sort(key=lambda entry: entry[:2])
        for i, (_, end, row) in enumerate(spans):
            for start, _, other in spans[i + 1 :]:
                if start >= end:
                    break
                for one, two in ((row, other), (other, row)):
                    if id(one) in mine and one["run_name"] != two["run_name"]:  # not the same row of two files
                        met.setdefault(one["run_name"], two["run_name"])
    if met:
        pairs = _listed([f"{one} with {two}" for one, two in met.items()])
        what = f"{len(met)} runs shared their machine with another: {pairs}"
        advice = "do not compare their times; run one after another for those"
        yield _finding("error", overlapping_runs, comparison, what, advice, "times")


def _span(row: Row) -> tuple[datetime, datetime] | None:
    """When the run was under way, less what clocks may be off."""
    wall = row.get("wall_time_s")
    if not is_number(wall) or wall <= _MEETING_S:
        return None
    try:
        end = datetime.fromisoformat(row["time_utc"])
        end = end if end.tzinfo is not None else end.replace(tzinfo=UTC)
        return end - timedelta(seconds=wall - _MEETING_S), end
    except (ValueError, OverflowError):
        return None


def _is_plain(arm: Arm) -> bool:
    """Is nothing compressed, whoever carries it?"""
    return not (arm.compresses_gradients or arm.compresses_parameters)


def _is_16_bit(runs: ArmRuns) -> bool:
    """Do both directions travel in 16 bits, whoever makes them so?"""
    arm = runs.arm
    gathered_in_16 = all(row.get("param_dtype") in HALF_DTYPES for row in runs.ended_well)
    gradients = arm.gradients in HALF_DTYPES or (not arm.compresses_gradients and arm.comm_dtype in HALF_DTYPES)
    return gradients and (arm.parameters in HALF_DTYPES or (not arm.compresses_parameters and gathered_in_16))


def baselines_of(comparison: Comparison) -> list[str]:
    """``["bf16", "fp32"]``: what uncompressed or merely narrower runs there are."""
    there = [runs for runs in comparison.arms if runs.ended_well]
    full = any(_is_plain(runs.arm) and not _is_16_bit(runs) for runs in there)
    return ["bf16"] * any(_is_16_bit(runs) for runs in there) + ["fp32"] * full


def _rows(comparison: Comparison) -> list[Row]:
    return [row for runs in comparison.arms for row in runs.runs.values()]


def _finished(comparison: Comparison) -> list[Row]:
    """Rows that measured everything; one whose loss is not finite is among them."""
    return [row for row in _rows(comparison) if row.get("status") == "ok"]


def _distinct_counts(comparison: Comparison) -> dict[int, list[ArmRuns]]:
    counts: dict[int, list[ArmRuns]] = {}
    for runs in comparison.arms:
        counts.setdefault(runs.candidates, []).append(runs)
    return counts


def _by_seed(comparison: Comparison) -> dict[int, list[Row]]:
    """What finished, seeds ascending."""
    rows: dict[int, list[Row]] = {}
    for row in sorted(_finished(comparison), key=lambda row: row["seed"]):
        rows.setdefault(row["seed"], []).append(row)
    return rows


def _distinct(values: Iterable[Any]) -> list[str]:
    """Those that differ, as text; null says nothing and is no value, and a NaN is like no other value."""
    seen: list[str] = []
    for value in values:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        if value is not None and (text not in seen or (isinstance(value, float) and math.isnan(value))):
            seen.append(text)
    return seen


def _labels(arms: Sequence[ArmRuns], comparison: Comparison | None = None) -> str:
    """Their labels, or how many when that is all of the comparison's."""
    if comparison is not None and len(arms) == len(comparison.arms):
        return f"all {len(arms)} arms"
    return _listed([runs.arm.label for runs in arms])


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return "; ".join(texts[:_NAMED]) + more


def _finding(
    severity: Severity,
    check: Callable[..., Iterator[Finding]],
    comparison: Comparison,
    what: str,
    advice: str,
    concerns: Concerns = "all",
) -> Finding:
    return Finding(severity, check.__name__, comparison.setting.label, what, advice, concerns)
