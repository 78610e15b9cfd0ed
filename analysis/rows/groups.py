"""Comparisons that differ in one thing: along world sizes, along links."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from analysis.rows.arms import Comparison, Setting
from analysis.rows.reading import is_number

Along = Callable[[Comparison], float]


def worlds(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """Groups that differ in the number of ranks, real or virtual, smallest first; lone ones left out.

    Threads a rank go with the number of ranks on a machine, so they do not count as a difference."""
    return _grouped(comparisons, _without_world, lambda c: (c.setting.world_size, not is_virtual(c)))


def links(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """Groups that differ in the link's rate, slowest first; lone ones, and those without a limit, left out."""
    limited = [c for c in comparisons if c.setting.link_rate]
    return _grouped(limited, without_link, lambda c: c.setting.link_rate)


def firsts_of_links(comparisons: Sequence[Comparison]) -> list[bool]:
    """Of each: does none before it in ``comparisons`` differ from it in the link's rate alone?"""
    seen: set[Setting] = set()
    found = []
    for comparison in comparisons:
        alike = without_link(comparison.setting)
        found.append(alike not in seen)
        seen.add(alike)
    return found


def without_link(setting: Setting) -> Setting:
    """What is common to those that differ in the link's rate alone."""
    return replace(setting, link_rate=None)


def is_virtual(comparison: Comparison) -> bool:
    """Were its ranks virtual, in one process? Then it has no times."""
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
    """Of the arms that more than one of the group has, in the order in which they first come."""
    counts = Counter(runs.arm.label for runs in itertools.chain.from_iterable(c.arms for c in group))
    return [name for name, count in counts.items() if count > 1]
