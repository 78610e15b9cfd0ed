"""How a check says what it found, and the values that it compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from analysis.checks.differences import differing_by_seed
from analysis.checks.finding import Concerns, Finding, Severity
from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.comparisons import ArmRuns, Comparison
from analysis.rows.ranges import spans
from analysis.rows.reading import Row

Check = Callable[[Comparison], Iterator[Finding]]
_NAMED = 4  # of a long list
_SPANS = 12  # of consecutive seeds


def within_seeds(
    severity: Severity,
    check: Check,
    comparison: Comparison,
    name: str,
    means: str,
    advice: str,
    concerns: Concerns = "all",
) -> Iterator[Finding]:
    """A finding where runs of one seed differ in ``name``, of a machine or a column, and what that ``means``."""
    seeds, unlike = differing_by_seed(comparison, of_machine(name))
    if seeds:
        what = f"{name} differs among the runs of seed {numbers(seeds)}: {means}"
        yield finding(severity, check, comparison, what, advice, concerns, unlike)


def column(name: str) -> Callable[[Row], Any]:
    """The measure that is a column of the row; None where it has none of the name."""
    return lambda row: row.get(name)


def version(name: str) -> Callable[[Row], Any]:
    """The measure that is the version of one library, or of the allocator."""
    return lambda row: (row.get("versions") or {}).get(name)


def of_machine(name: str) -> Callable[[Row], Any]:
    """The measure that is an entry of the row's ``hardware`` or, where that has none of the name, a column."""

    def read(row: Row) -> Any:
        hardware = row.get("hardware") or {}
        return hardware[name] if name in hardware else row.get(name)

    return read


def arms_of(runs: Iterable[ArmRuns]) -> tuple[Arm, ...]:
    """The arms that a finding is about."""
    return tuple(one.arm for one in runs)


def numbers(seeds: Sequence[int]) -> str:
    """The numbers as text, with ranges: ``1, 2, 7 to 30``."""
    parts = spans(seeds)
    more = f" and {len(parts) - _SPANS} more" if len(parts) > _SPANS else ""
    return ", ".join(parts[:_SPANS]) + more


def labels(arms: Sequence[ArmRuns], comparison: Comparison | None = None) -> str:
    """The arms' labels, or how many arms there are when it is all of the comparison's."""
    if comparison is not None and len(arms) == len(comparison.arms):
        return f"all {len(arms)} arms"
    return listed([runs.arm.label for runs in arms])


def listed(texts: Sequence[str]) -> str:
    """The first few of the texts, and how many more there are."""
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return "; ".join(texts[:_NAMED]) + more


def finding(
    severity: Severity,
    check: Callable[..., Iterator[Finding]],
    comparison: Comparison,
    what: str,
    advice: str,
    concerns: Concerns = "all",
    arms: tuple[Arm, ...] = (),
) -> Finding:
    """What a check found in a comparison; it has the check's name."""
    return Finding(severity, check.__name__, comparison.setting.label, what, advice, concerns, arms)
