"""Comparisons beside each other: along world sizes, along links, and in several settings."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from analysis.rows.comparing.comparisons import Comparison
from analysis.rows.comparing.settings import Setting
from analysis.rows.reading import is_number

Along = Callable[[Comparison], float]


def worlds(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """Groups of comparisons that differ in the number of ranks, real or virtual, smallest first.

    A comparison without a partner is left out. Threads a rank depend on the number of ranks on a machine, so they do
    not count as a difference."""
    return _grouped(comparisons, _without_world, lambda c: (c.setting.world_size, not is_virtual(c)))


def links(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """Groups of comparisons that differ in the link's rate, slowest first.

    Those without a partner and those without a limit are left out."""
    limited = [c for c in comparisons if c.setting.link_rate]
    return _grouped(limited, without_link, lambda c: c.setting.link_rate)


def several(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """One group at most: the comparisons, by quality, of which each shares an arm beside the baseline's with another.

    None where they differ in nothing but their ranks or their link, which have groups of their own."""
    judged = [c for c in comparisons if c.baseline is not None and c.rivals]
    counts = Counter(name for c in judged for name in {runs.arm.label for runs in c.rivals})
    group = [c for c in judged if any(counts[runs.arm.label] > 1 for runs in c.rivals)]
    elsewise = {_without_world(without_link(c.setting)) for c in group}
    return [group] if len(elsewise) > 1 else []


def firsts_of_links(comparisons: Sequence[Comparison]) -> list[bool]:
    """For each comparison: is it the first of those that differ in the link's rate alone?"""
    seen: set[Setting] = set()
    are_first = []
    for comparison in comparisons:
        alike = without_link(comparison.setting)
        are_first.append(alike not in seen)
        seen.add(alike)
    return are_first


def without_link(setting: Setting) -> Setting:
    """The setting without its link's rate: equal for comparisons that differ in nothing else."""
    return replace(setting, link_rate=None)


def is_virtual(comparison: Comparison) -> bool:
    """Did one process play all ranks? Such a comparison has no times."""
    counts = [row.setting("virtual_ranks") for runs in comparison.arms for row in runs.runs.values()]
    return any(is_number(count) and count > 0 for count in counts)


def _without_world(setting: Setting) -> Setting:
    config = tuple(pair for pair in setting.config if pair[0] not in ("virtual_ranks", "threads"))
    return replace(setting, world_size=0, config=config)


def _grouped(
    comparisons: Sequence[Comparison], common: Callable[[Setting], Setting], order: Callable[[Comparison], Any]
) -> list[list[Comparison]]:
    groups: dict[Setting, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(common(comparison.setting), []).append(comparison)
    ordered = [sorted(group, key=order) for group in groups.values()]
    return [group for group in ordered if len({order(c) for c in group}) > 1]


def labels(group: Sequence[Comparison]) -> list[str]:
    """The labels of arms that more than one comparison of the group has, in the order in which they first come."""
    counts = Counter(runs.arm.label for runs in itertools.chain.from_iterable(c.arms for c in group))
    return [name for name, count in counts.items() if count > 1]
