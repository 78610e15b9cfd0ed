"""What was compared, in a few facts: data, seeds, tuning, hardware, source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from analysis.rows.comparing.comparisons import Comparison
from analysis.rows.comparing.groups import is_virtual
from analysis.rows.reading import Row, is_draft

Fact = tuple[str, str]


def facts(comparison: Comparison, first: Comparison) -> list[Fact]:
    """The facts of one comparison; ``first`` is the one that its settings are compared with."""
    rows = comparison.rows
    finished = [row for runs in comparison.arms for row in runs.ended_well] or rows
    known = [
        ("arms", f"{len(comparison.arms)}, baseline {_baseline(comparison)}"),
        ("seeds", _seeds(comparison)),
        ("data", _texts(f"{_name(r.get('dataset'))}, {_count(r.get('tokens_seen'))} tokens seen" for r in finished)),
        ("ranks", _ranks(comparison, rows)),
        ("tuning", _tuning(comparison)),
        ("failed runs", _failures(comparison)),
        *source(rows),
    ]
    differences = first.setting.differences(comparison.setting)
    if differences:
        known.append(("settings that differ from the first comparison's", "; ".join(differences)))
    return known


def source(rows: Sequence[Row]) -> list[Fact]:
    """Where the rows come from: hardware, commits, versions."""
    return [
        ("hardware", _texts(_hardware(r.get("hardware") or {}) for r in rows)),
        ("source", _texts(_commit(r) for r in rows)),
        ("versions", _texts(_versions(r.get("versions") or {}) for r in rows)),
    ]


def _baseline(comparison: Comparison) -> str:
    return "missing" if comparison.baseline is None else comparison.baseline.arm.label


def _seeds(comparison: Comparison) -> str:
    by_arm = [tuple(sorted(runs.runs)) for runs in comparison.arms]
    if len(set(by_arm)) == 1:
        return f"{len(by_arm[0])} an arm: {', '.join(map(str, by_arm[0]))}"
    counts = [len(seeds) for seeds in by_arm]
    return (
        f"{min(counts)} to {max(counts)} an arm, of {', '.join(map(str, sorted({s for arm in by_arm for s in arm})))}"
    )


def _ranks(comparison: Comparison, rows: Sequence[Row]) -> str:
    kind = "virtual, in one process" if is_virtual(comparison) else _texts(str(r.get("backend") or "?") for r in rows)
    return f"{comparison.setting.world_size} ({kind})"


def _tuning(comparison: Comparison) -> str:
    names = sorted({name for runs in comparison.arms for name in runs.tuned})
    counts = sorted({runs.candidates for runs in comparison.arms})
    if counts == [1]:
        values = {json.dumps(runs.tuned.get(name)) for runs in comparison.arms for name in names}
        return f"none: {', '.join(names)} {', '.join(sorted(values))} for every arm" if names else "none"
    chosen = "; ".join(
        f"{runs.arm.label}: {', '.join(f'{name} {value}' for name, value in runs.tuned.items())}"
        for runs in comparison.arms
    )
    quality = "acceptance length" if any(map(is_draft, comparison.rows)) else "validation loss"
    budget = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{', '.join(names)}: {budget} candidates an arm; chosen by {quality}: {chosen}"


def _failures(comparison: Comparison) -> str:
    lost = [f"{runs.arm.label} ({len(runs.failures)} of {len(runs.runs)})" for runs in comparison.arms if runs.failures]
    return ", ".join(lost) or "none"


def _hardware(hardware: dict[str, Any]) -> str:
    gpus = hardware.get("gpus") or []
    where = ", ".join(map(str, gpus)) if gpus else f"{hardware.get('cores', '?')} cores of {hardware.get('cpu', '?')}"
    return f"{where}, {hardware.get('ram_gb', '?')} GB, host {hardware.get('host', '?')}"


def _commit(row: Row) -> str:
    commit = row.get("git_commit")
    return "no commit known" if not commit else commit[:12] + (" with changes" if row.get("git_dirty") else "")


def _versions(versions: dict[str, Any]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in ("python", "torch") if name in versions) or "not known"


def _name(path: Any) -> str:
    """The name of a data file: where it lay does not matter."""
    return str(path).rsplit("/", 1)[-1]


def _count(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else "unknown"


def _texts(texts: Iterable[str]) -> str:
    """The different texts, in order."""
    return "; ".join(dict.fromkeys(texts))
