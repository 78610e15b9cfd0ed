"""Were the runs made alike: one processor, one version, one schedule, and nothing beside?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.checks.comparing.wording import arms_of, finding, listed, of_machine, version, within_seeds
from analysis.checks.differences import differing, distinct, finished
from analysis.checks.finding import Finding, Severity
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.comparing.setting_roles import LATER
from analysis.rows.reading import Row


def pairs_of_two_processors(comparison: Comparison) -> Iterator[Finding]:
    """Numbers repeat on one kind of processor only. What another one changes is added to the chance within a pair."""
    means = "their last digits differ, too"
    advice = "expect wider intervals, or run both halves of a pair on one kind of processor"
    yield from within_seeds("warning", pairs_of_two_processors, comparison, "cpu", means, advice, "quality")


def mixed_hardware(comparison: Comparison) -> Iterator[Finding]:
    """Times of one machine say nothing about another's."""
    for name in ("backend", "cpu", "cores", "gpus", "host"):
        values, unlike = differing(comparison, of_machine(name))
        severity: Severity = "warning" if name == "host" else "error"  # several machines of one kind
        if len(values) > 1:
            advice = "compare times within one machine only"
            what = f"{name} differs: {listed(values)}"
            yield finding(severity, mixed_hardware, comparison, what, advice, "times", unlike)


def mixed_allocators(comparison: Comparison) -> Iterator[Finding]:
    """What gives memory changes no number, but times: steps on a CPU took up to 24 % less with jemalloc."""
    values, unlike = differing(comparison, version("malloc"))
    if len(values) > 1:
        what = f"malloc differs: {listed(values)}"
        yield finding("error", mixed_allocators, comparison, what, "compare times of one allocator", "times", unlike)


def mixed_versions(comparison: Comparison) -> Iterator[Finding]:
    """Another commit or library may train otherwise."""
    names = dict.fromkeys(name for row in finished(comparison) for name in row.get("versions") or {})
    names.pop("malloc", None)  # `mixed_allocators`
    seen = {name: differing(comparison, version(name)) for name in names}
    seen |= {"git_commit": differing(comparison, lambda row: (row.get("git_commit") or "")[:10] or None)}
    for name, (values, unlike) in seen.items():
        if len(values) > 1:
            advice = "run all arms with one commit and one environment"
            what = f"{name} differs: {listed(values)}"
            yield finding("warning", mixed_versions, comparison, what, advice, arms=unlike)


def dirty_checkout(comparison: Comparison) -> Iterator[Finding]:
    """Nobody can get the program back that made these rows."""
    dirty = [row for row in finished(comparison) if row.get("git_dirty")]
    if dirty:
        what = f"{len(dirty)} runs of a checkout with uncommitted changes: {listed([r['run_name'] for r in dirty])}"
        arms = arms_of(runs for runs in comparison.arms if any(row.get("git_dirty") for row in runs.runs.values()))
        yield finding("warning", dirty_checkout, comparison, what, "commit first, then run", arms=arms)


def other_schedule(comparison: Comparison) -> Iterator[Finding]:
    """What hides behind computation depends on these settings, so each is for all arms or for none."""
    for setting in ("fsdp_prefetch", "fsdp_reshard", "fsdp_overlap_reduce"):
        values = distinct(_value(runs, setting) for runs in comparison.arms)
        if len(values) > 1:
            advice = "give every arm, the baselines too, the same fsdp_prefetch, fsdp_reshard and fsdp_overlap_reduce"
            what = f"{setting} differs: {listed(values)}"
            own = None if comparison.baseline is None else _value(comparison.baseline, setting)
            others = [runs for runs in comparison.rivals if own is not None and _value(runs, setting) != own]
            yield finding("error", other_schedule, comparison, what, advice, "times", arms_of(others))


def overlapping_runs(comparison: Comparison, met: Mapping[int, Row]) -> Iterator[Finding]:
    """Runs that shared their machine with another run, so that their times measure both. ``met`` is the result of
    `overlaps.meetings`."""
    timed = [row for row in finished(comparison) if row.get("step_time_ms_p50") is not None and id(row) in met]
    if timed:
        pairs = listed([f"{row['run_name']} with {met[id(row)]['run_name']}" for row in timed])
        what = f"{len(timed)} runs shared their machine with another: {pairs}"
        advice = "do not compare their times; run one after another for those"
        own = {id(row) for row in timed}
        arms = arms_of(runs for runs in comparison.arms if any(id(row) in own for row in runs.runs.values()))
        yield finding("error", overlapping_runs, comparison, what, advice, "times", arms)


def _value(runs: ArmRuns, setting: str) -> Any:
    """What an arm's rows say of a setting that is the same in all of them; None: nothing, or there are no rows."""
    row = next(iter(runs.runs.values()), None)
    return None if row is None else row["config"].get(setting, LATER.get(setting))
