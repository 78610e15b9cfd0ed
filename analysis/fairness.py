"""What is wrong with results rows and with the comparisons they make, before anyone plots them.

    python -m analysis.fairness results/results.jsonl [--json FILE] [--select COLUMN=VALUE ...] [--baseline ARM]

prints one finding a line, what it rests on and what to do about it; exit code 1 when there is an error among them. A
check is a function from one row (`row_checks`) or one comparison (`comparison_checks`) to its findings.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from analysis import comparison_checks, row_checks
from analysis.arms import TUNED, Comparison, comparisons
from analysis.finding import Concerns, Finding
from analysis.options import add_options
from analysis.rows import Row, parse_selection, read, select
from fsdp_lab.user_errors import unix_pipes

_LETTERS = 90  # of a verdict's list


def findings(rows: Sequence[Row], baseline: str = "none", tuned: Sequence[str] = TUNED) -> list[Finding]:
    """All checks' findings over rows that ended well and every comparison of two arms or more; errors first."""
    found, compared = of_rows(rows), comparisons(rows, baseline, tuned)
    for comparison in compared:
        found += of_comparison(comparison, rows)
        found += comparison_checks.alone(comparison, compared)
    return sorted(found, key=lambda finding: finding.severity)


def of_rows(rows: Iterable[row_checks.Row]) -> list[Finding]:
    """What single rows have wrong with them; those that did not end well are left to others."""
    return [f for row in rows if row.get("status") == "ok" for check in row_checks.CHECKS for f in check(row)]


def of_comparison(comparison: Comparison, among: Sequence[Row]) -> list[Finding]:
    """What one comparison has; ``among``: all rows there are, to see which runs shared a machine. One arm is none."""
    if len(comparison.arms) < 2:
        return []
    found = [finding for check in comparison_checks.CHECKS for finding in check(comparison)]
    return found + list(comparison_checks.overlapping_runs(comparison, among))


def findings_of(comparison: Comparison, among: Sequence[Row]) -> list[Finding]:
    """What a figure of one comparison must own up to: the findings of its rows and its own, errors first."""
    rows = [row for runs in comparison.arms for row in runs.runs.values()]
    return sorted(of_rows(rows) + of_comparison(comparison, among), key=lambda finding: finding.severity)


def verdict(
    found: Sequence[Finding], comparison: Comparison | None = None, concerns: Sequence[Concerns] | None = None
) -> str:
    """One line for a figure's foot.

    ``fair: 3 seeds, same tokens, bf16 and fp32 baselines``, or ``NOT FAIR: one seed; mixed hardware``; warnings follow
    in brackets. ``concerns``: what the figure shows (quality, times, bytes); findings about other things are left
    out. None: everything."""
    heard = [f for f in found if concerns is None or f.concerns == "all" or f.concerns in concerns]
    errors, warnings = (_checks(heard, severity) for severity in ("error", "warning"))
    noted = f" (to note: {_cut(warnings)})" if warnings else ""
    if errors:
        return f"NOT FAIR: {_cut(errors)}{noted}"
    if comparison is None:
        return f"fair: no error found{noted}"
    if len(comparison.arms) < 2:
        return f"one arm only: nothing is compared{noted}"
    counts = [len(runs.runs) for runs in comparison.arms]
    seeds = str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    baselines = comparison_checks.baselines_of(comparison)
    against = f"{' and '.join(baselines)} baseline{'s' * (len(baselines) > 1)}" if baselines else "no plain baseline"
    return f"fair: {seeds} seeds, same tokens, {against}{noted}"


def _checks(found: Sequence[Finding], severity: str) -> list[str]:
    return list(dict.fromkeys(f.check.replace("_", " ") for f in found if f.severity == severity))


def _cut(names: Sequence[str]) -> str:
    """As many as fit on a line."""
    shown = list(names)
    while len(shown) > 1 and len("; ".join(shown)) > _LETTERS:
        shown.pop()
    rest = len(names) - len(shown)
    return "; ".join(shown) + (f"; {rest} more" if rest else "")


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there, too")
    options = parser.parse_args(argv)
    try:
        there = read(options.file)
        sound = [*there.rows, *there.drafts]
        if not sound:
            print("".join(f"{line}\n" for line in there.left_out), end="", file=sys.stderr)
            raise ValueError(f"{', '.join(map(str, options.file))} holds no sound row")
        rows = select(sound, **parse_selection(options.select))
        found = findings(rows, options.baseline, options.tuned)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(finding) for finding in found], indent=1) + "\n")
    except (ValueError, OSError) as error:
        print(f"fairness: {error}", file=sys.stderr)
        return 2
    print("".join(f"left out: {line}\n" for line in there.left_out), end="", file=sys.stderr)
    for finding in found:
        print(f"{finding.severity:8s}{finding.subject}: {finding.what}\n{'':8s}{finding.advice} [{finding.check}]")
    left_out = f", {len(there.left_out)} lines left out" if there.left_out else ""
    print(f"{len(rows)} rows{left_out}, {len(found)} findings")
    return int(any(finding.severity == "error" for finding in found))


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
