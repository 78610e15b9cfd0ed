"""What is wrong with a comparison. A check takes one `Comparison` and names what it found by its own name.

A check speaks once, with the arms it is about, however many they are. Where arms differ in something that all should
have in common, those are meant that differ from the baseline; where that has no value of its own, all are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from analysis.checks.differences import by_seed, differing, differing_by_seed, distinct, finished
from analysis.checks.finding import Concerns, Finding, Severity
from analysis.checks.grids import candidates
from analysis.checks.sixteen_bits import carries_16_bits, compresses_further, sixteen_bit_arm
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison, failed, mean_loss
from analysis.rows.comparing.setting_roles import LATER
from analysis.rows.quality import loss_of, quality_of
from analysis.rows.ranges import spans
from analysis.rows.reading import Row, is_number
from analysis.statistics.intervals import better_than_baseline

Check = Callable[[Comparison], Iterator[Finding]]
ENOUGH_SEEDS = 3
TOKEN_COLUMNS = ("dataset", "dataset_tokens", "max_length", "val_tokens", "tau_prompts", "eval_weights")
_NAMED = 4  # of a long list
_NEAREST = 50  # comparisons, the largest, of which the one is named that differs least
_SPANS = 12  # of consecutive seeds


def one_seed(comparison: Comparison) -> Iterator[Finding]:
    """One seed says nothing about the next."""
    arms = [runs for runs in comparison.arms if len(runs.runs) == 1]
    if arms:
        what = f"one seed, so no interval: {_labels(arms, comparison)}"
        advice = f"run {ENOUGH_SEEDS} seeds or more"
        yield _finding("error", one_seed, comparison, what, advice, "quality", _arms(arms))


def few_seeds(comparison: Comparison) -> Iterator[Finding]:
    """With two seeds the 95 % interval reaches 12.7 standard errors to each side of the mean, with three 4.3."""
    arms = [runs for runs in comparison.arms if 1 < len(runs.runs) < ENOUGH_SEEDS]
    if arms:
        what = f"fewer than {ENOUGH_SEEDS} seeds: {_labels(arms, comparison)}"
        advice = f"run {ENOUGH_SEEDS} seeds or more"
        yield _finding("warning", few_seeds, comparison, what, advice, "quality", _arms(arms))


def no_baseline(comparison: Comparison) -> Iterator[Finding]:
    """Without a baseline there is nothing to compare the arms with."""
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
    on_gloo = any(row.get("backend") == "gloo" and _reduces(row) for row in comparison.rows)
    there = [runs.arm for runs in comparison.arms if runs.ended_well]
    if on_gloo and not any(arm.gradients == "identity" and not arm.compresses_parameters for arm in there):
        what = "on gloo stock FSDP2 sends its gradients twice, and no identity run shows what sending them once costs"
        advice = "run identity + identity, and compare times and bytes with the better of the two"
        yield _finding("error", no_identity_on_gloo, comparison, what, advice, "times")


def _reduces(row: Row) -> bool:
    """Did FSDP2 reduce gradients? Rows that do not say by operation are older than other ways to divide work."""
    return "reduce_scatter" in (row.get("elements_by_op") or {"reduce_scatter": None})


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
        yield _finding("error", no_16_bit_baseline, comparison, what, advice, arms=_arms(compressed))
    blind = [runs for runs in comparison.arms if any(not row.get("elements_by_op") for row in runs.ended_well)]
    if blind:
        what = f"no elements_by_op, so no ratio against bf16: {_labels(blind)}"
        advice = "run again with this version, or migrate the file"
        yield _finding("warning", no_16_bit_baseline, comparison, what, advice, "bytes", _arms(blind))


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
        named = [f"{arm.label} (seed {_numbers(seeds)})" for arm, seeds in lacking.items()]
        what = f"{plain.arm.label} has no finished run with seeds that others are compared over: {_listed(named)}"
        advice = f"run {plain.arm.label} with those seeds, or compare over the seeds that it has (--select seed=...)"
        yield _finding("error", seeds_without_16_bits, comparison, what, advice, arms=tuple(lacking))


def different_tokens(comparison: Comparison) -> Iterator[Finding]:
    """All arms must see the same tokens, as many of them, and be judged by the same validation tokens.

    Their number is compared within a seed, since conversations in another order fill other batches."""
    advice = "do not compare: run the odd ones again with the data of the others"
    for name in TOKEN_COLUMNS:
        values, unlike = differing(comparison, _column(name))
        if len(values) > 1:
            what = f"{name} differs: {_listed(values)}"
            yield _finding("error", different_tokens, comparison, what, advice, arms=unlike)
    seeds, unlike = differing_by_seed(comparison, _column("tokens_seen"))
    if seeds:
        first = distinct(row.get("tokens_seen") for row in by_seed(comparison)[seeds[0]].values())
        more = f" (and {len(seeds) - 1} more seeds)" if len(seeds) > 1 else ""
        what = f"tokens_seen differs among the runs of seed {seeds[0]}: {_listed(first)}{more}"
        yield _finding("error", different_tokens, comparison, what, advice, arms=unlike)


def other_stream(comparison: Comparison) -> Iterator[Finding]:
    """Runs of one seed must train on the same sequences in the same order; rows without a digest cannot say."""
    means = "other sequences, or another order"
    advice = "do not compare: find out which settings, files or versions dealt other data"
    yield from _within_seeds("error", other_stream, comparison, "data_digest", means, advice)
    silent = [runs for runs in comparison.arms if any(not row.get("data_digest") for row in runs.ended_well)]
    if silent:
        what = f"unknown whether the runs saw the same sequences, no data_digest: {_labels(silent, comparison)}"
        advice = "nothing, if settings and version are the same; else run again with this version"
        yield _finding("warning", other_stream, comparison, what, advice, arms=_arms(silent))


def other_start(comparison: Comparison) -> Iterator[Finding]:
    """Runs of one seed that go on must begin with the same saved weights: a start trained anew elsewhere is another."""
    means = "they began with different weights"
    advice = "do not compare: run the odd ones again from the weights of the others"
    yield from _within_seeds("error", other_start, comparison, "start_digest", means, advice, "quality")


def pairs_of_two_processors(comparison: Comparison) -> Iterator[Finding]:
    """Numbers repeat on one kind of processor only. What another one changes is added to the chance within a pair."""
    means = "their last digits differ, too"
    advice = "expect wider intervals, or run both halves of a pair on one kind of processor"
    yield from _within_seeds("warning", pairs_of_two_processors, comparison, "cpu", means, advice, "quality")


def _within_seeds(
    severity: Severity,
    check: Check,
    comparison: Comparison,
    name: str,
    means: str,
    advice: str,
    concerns: Concerns = "all",
) -> Iterator[Finding]:
    """A finding where runs of one seed differ in ``name``, of a machine or a column, and what that ``means``."""
    seeds, unlike = differing_by_seed(comparison, _of_machine(name))
    if seeds:
        what = f"{name} differs among the runs of seed {_numbers(seeds)}: {means}"
        yield _finding(severity, check, comparison, what, advice, concerns, unlike)


def seeds_not_shared(comparison: Comparison) -> Iterator[Finding]:
    """Only runs of the same seed have the same initial weights and order of data."""
    base = comparison.baseline
    if base is None:
        return
    alone = [runs for runs in comparison.rivals if not runs.runs.keys() & base.runs.keys()]
    shared = [runs for runs in comparison.rivals if runs.runs.keys() & base.runs.keys()]
    more = [runs for runs in shared if runs.runs.keys() - base.runs.keys()]
    advice = f"run {base.arm.label} with those seeds"
    if alone:
        what = f"no seed in common with {base.arm.label}: {_labels(alone)}"
        yield _finding("error", seeds_not_shared, comparison, what, advice, "quality", _arms(alone))
    if more:
        what = f"seeds that {base.arm.label} has no run of, which are in no paired figure: {_labels(more)}"
        yield _finding("warning", seeds_not_shared, comparison, what, advice, "quality", _arms(more))


def missing_runs(comparison: Comparison) -> Iterator[Finding]:
    """A run that is not there may be one that went wrong: it counts as infinitely bad until it is."""
    base = comparison.baseline
    wanted = set(base.runs) if base is not None else set().union(*(runs.runs for runs in comparison.arms))
    some = [runs for runs in comparison.arms if wanted & runs.runs.keys()]
    lacking = {runs.arm: sorted(wanted - runs.runs.keys()) for runs in some if wanted - runs.runs.keys()}
    if lacking:
        named = [f"{arm.label} (seed {_numbers(seeds)})" for arm, seeds in lacking.items()]
        what = f"runs are missing, dropped or never made: {_listed(named)}"
        advice = "run them, or compare over shared seeds only (--select seed=...), and say so"
        yield _finding("error", missing_runs, comparison, what, advice, "quality", tuple(lacking))


def repeated_runs(comparison: Comparison) -> Iterator[Finding]:
    """Several runs have the same seed. The last one that ended well is used, and the reader must know that."""
    retried = [
        runs for runs in comparison.arms if any(failed(r) and r.get("status") != "preempted" for r in runs.repeated)
    ]
    if retried:
        what = f"runs that failed and were made again, of which the one that ended well counts: {_labels(retried)}"
        advice = "find out whether the machine or the method failed; if the method, count it as failed"
        yield _finding("warning", repeated_runs, comparison, what, advice, "quality", _arms(retried))
    unlike = []
    for runs in comparison.arms:
        again = [row for row in runs.repeated if not failed(row)]
        if any(loss_of(row) != loss_of(runs.runs[row["seed"]]) for row in again):
            unlike.append(runs)
    if unlike:
        quality = quality_of(unlike[0].repeated[0]).column
        what = f"the same seed again with another {quality}: {_labels(unlike)}"
        advice = "find what changed between the runs; the last one is used"
        yield _finding("warning", repeated_runs, comparison, what, advice, "quality", _arms(unlike))


def unequal_tuning(comparison: Comparison) -> Iterator[Finding]:
    """Whoever may choose among more values wins more often; values beyond an edge may be no advantage (`grids`)."""
    counts, base = _distinct_counts(comparison), comparison.baseline
    like_base = [] if base is None else next(arms for arms in counts.values() if base in arms)
    others = [] if base is None else [runs for runs in comparison.rivals if runs not in like_base]
    advice = "try the same values for every arm, the baseline among them, and say how many"
    if len(counts) > 1:
        tried = "; ".join(f"{count}: {_labels(arms)}" for count, arms in sorted(counts.items()))
        what = f"arms had unequal numbers of candidates ({tried})"
        yield _finding("error", unequal_tuning, comparison, what, advice, arms=_arms(others))
    chosen = distinct(runs.tuned for runs in comparison.arms)
    if set(counts) == {1} and len(chosen) > 1:
        what = f"arms differ in what was tuned, and nothing else was tried: {_listed(chosen)}"
        others = [] if base is None else [runs for runs in comparison.rivals if runs.tuned != base.tuned]
        yield _finding("error", unequal_tuning, comparison, what, advice, arms=_arms(others))


def best_at_the_edge(comparison: Comparison) -> Iterator[Finding]:
    """The best of the values tried is the largest or smallest: a better one may lie beyond."""
    at_edge: list[tuple[Arm, str]] = []
    for runs in comparison.arms:
        for name, value in runs.tuned.items():
            tried = [json.loads(dict(values)[name]) for values in runs.trials]
            if len(tried) > 1 and all(map(is_number, tried)) and value in (min(tried), max(tried)):
                at_edge.append((runs.arm, f"{runs.arm.label} ({name} {value:g})"))
    if at_edge:
        what = f"the best value lies on the edge of those tried: {_listed([text for _, text in at_edge])}"
        arms = tuple(dict.fromkeys(arm for arm, _ in at_edge))
        yield _finding("warning", best_at_the_edge, comparison, what, "try values beyond it", "quality", arms)


def tuned_otherwise(comparison: Comparison) -> Iterator[Finding]:
    """The values with the most seeds are used for an arm, but on the seeds that they share other values did better."""
    beaten = []
    for runs in comparison.arms:
        for trial in runs.trials.values() if runs.candidates > 1 else ():
            shared = trial.keys() & runs.runs.keys()
            if shared and mean_loss(trial[s] for s in shared) < mean_loss(runs.runs[s] for s in shared):
                beaten.append(runs)
                break
    if beaten:
        what = f"another candidate did better on the seeds that it was tried with: {_labels(beaten)}"
        advice = "run that one with all seeds"
        yield _finding("warning", tuned_otherwise, comparison, what, advice, "quality", _arms(beaten))


def mixed_hardware(comparison: Comparison) -> Iterator[Finding]:
    """Times of one machine say nothing about another's."""
    for name in ("backend", "cpu", "cores", "gpus", "host"):
        values, unlike = differing(comparison, _of_machine(name))
        severity: Severity = "warning" if name == "host" else "error"  # several machines of one kind
        if len(values) > 1:
            advice = "compare times within one machine only"
            what = f"{name} differs: {_listed(values)}"
            yield _finding(severity, mixed_hardware, comparison, what, advice, "times", unlike)


def mixed_allocators(comparison: Comparison) -> Iterator[Finding]:
    """What gives memory changes no number, but times: steps on a CPU took up to 24 % less with jemalloc."""
    values, unlike = differing(comparison, _version("malloc"))
    if len(values) > 1:
        what = f"malloc differs: {_listed(values)}"
        yield _finding("error", mixed_allocators, comparison, what, "compare times of one allocator", "times", unlike)


def mixed_versions(comparison: Comparison) -> Iterator[Finding]:
    """Another commit or library may train otherwise."""
    names = dict.fromkeys(name for row in finished(comparison) for name in row.get("versions") or {})
    names.pop("malloc", None)  # `mixed_allocators`
    seen = {name: differing(comparison, _version(name)) for name in names}
    seen |= {"git_commit": differing(comparison, lambda row: (row.get("git_commit") or "")[:10] or None)}
    for name, (values, unlike) in seen.items():
        if len(values) > 1:
            advice = "run all arms with one commit and one environment"
            what = f"{name} differs: {_listed(values)}"
            yield _finding("warning", mixed_versions, comparison, what, advice, arms=unlike)


def dirty_checkout(comparison: Comparison) -> Iterator[Finding]:
    """Nobody can get the program back that made these rows."""
    dirty = [row for row in finished(comparison) if row.get("git_dirty")]
    if dirty:
        what = f"{len(dirty)} runs of a checkout with uncommitted changes: {_listed([r['run_name'] for r in dirty])}"
        arms = _arms(runs for runs in comparison.arms if any(row.get("git_dirty") for row in runs.runs.values()))
        yield _finding("warning", dirty_checkout, comparison, what, "commit first, then run", arms=arms)


def other_schedule(comparison: Comparison) -> Iterator[Finding]:
    """What hides behind computation depends on these settings, so each is for all arms or for none."""
    for setting in ("fsdp_prefetch", "fsdp_reshard", "fsdp_overlap_reduce"):
        values = distinct(_value(runs, setting) for runs in comparison.arms)
        if len(values) > 1:
            advice = "give every arm, the baselines too, the same fsdp_prefetch, fsdp_reshard and fsdp_overlap_reduce"
            what = f"{setting} differs: {_listed(values)}"
            own = None if comparison.baseline is None else _value(comparison.baseline, setting)
            others = [runs for runs in comparison.rivals if own is not None and _value(runs, setting) != own]
            yield _finding("error", other_schedule, comparison, what, advice, "times", _arms(others))


def _value(runs: ArmRuns, setting: str) -> Any:
    """What an arm's rows say of a setting that is the same in all of them; None: nothing, or there are no rows."""
    row = next(iter(runs.runs.values()), None)
    return None if row is None else row["config"].get(setting, LATER.get(setting))


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
        yield _finding("warning", better_than_uncompressed, comparison, what, advice, "quality", arms)


CHECKS: tuple[Check, ...] = (
    no_baseline,
    one_seed,
    few_seeds,
    no_16_bit_baseline,
    seeds_without_16_bits,
    no_identity_on_gloo,
    different_tokens,
    other_stream,
    other_start,
    pairs_of_two_processors,
    seeds_not_shared,
    missing_runs,
    baseline_failed,
    repeated_runs,
    unequal_tuning,
    best_at_the_edge,
    tuned_otherwise,
    mixed_hardware,
    mixed_allocators,
    mixed_versions,
    dirty_checkout,
    other_schedule,
    better_than_uncompressed,
)


def alone(compared: Sequence[Comparison]) -> Iterator[Finding]:
    """Runs that a setting keeps apart from the baseline: a failure among them would not be seen, nor would a better
    method."""
    having = [other for other in compared if other.baseline is not None][:_NEAREST]
    for comparison in compared if having else ():
        if comparison.baseline is not None:
            continue
        apart = min((comparison.setting.differences(other.setting) for other in having), key=len)
        what = f"compared with no baseline ({_labels(comparison.arms)}), because of {_listed(apart)}"
        advice = "run it with the settings of the others, or a baseline with its own"
        yield _finding("warning", alone, comparison, what, advice)


def overlapping_runs(comparison: Comparison, met: Mapping[int, Row]) -> Iterator[Finding]:
    """Runs that shared their machine with another run, so that their times measure both. ``met`` is the result of
    `overlaps.meetings`."""
    timed = [row for row in finished(comparison) if row.get("step_time_ms_p50") is not None and id(row) in met]
    if timed:
        pairs = _listed([f"{row['run_name']} with {met[id(row)]['run_name']}" for row in timed])
        what = f"{len(timed)} runs shared their machine with another: {pairs}"
        advice = "do not compare their times; run one after another for those"
        own = {id(row) for row in timed}
        arms = _arms(runs for runs in comparison.arms if any(id(row) in own for row in runs.runs.values()))
        yield _finding("error", overlapping_runs, comparison, what, advice, "times", arms)


def _distinct_counts(comparison: Comparison) -> dict[int, list[ArmRuns]]:
    counts, tried = dict[int, list[ArmRuns]](), candidates(comparison)
    for runs in comparison.arms:
        counts.setdefault(max(len(tried[runs.arm]), 1), []).append(runs)
    return counts


def _column(name: str) -> Callable[[Row], Any]:
    return lambda row: row.get(name)


def _version(name: str) -> Callable[[Row], Any]:
    return lambda row: (row.get("versions") or {}).get(name)


def _of_machine(name: str) -> Callable[[Row], Any]:
    """The measure that is an entry of the row's ``hardware`` or, where that has none of the name, a column."""

    def read(row: Row) -> Any:
        hardware = row.get("hardware") or {}
        return hardware[name] if name in hardware else row.get(name)

    return read


def _arms(runs: Iterable[ArmRuns]) -> tuple[Arm, ...]:
    return tuple(one.arm for one in runs)


def _numbers(seeds: Sequence[int]) -> str:
    """The numbers as text, with ranges: ``1, 2, 7 to 30``."""
    parts = spans(seeds)
    more = f" and {len(parts) - _SPANS} more" if len(parts) > _SPANS else ""
    return ", ".join(parts[:_SPANS]) + more


def _labels(arms: Sequence[ArmRuns], comparison: Comparison | None = None) -> str:
    """The arms' labels, or how many arms there are when it is all of the comparison's."""
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
    arms: tuple[Arm, ...] = (),
) -> Finding:
    return Finding(severity, check.__name__, comparison.setting.label, what, advice, concerns, arms)
