"""Flags that all programs over results rows share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.rows.comparing.comparisons import Comparison, comparisons
from analysis.rows.comparing.settings import TUNED
from analysis.rows.reading import Row, parse_selection, read_for_user
from analysis.statistics.names import called
from analysis.tables.unknown_names import DEFAULT_BASELINE, check_baseline, check_settings


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which rows a program takes: result files, and ``--select FIELD=VALUE``."""
    parser.add_argument("file", type=Path, nargs="+", help="results.jsonl")
    select = parser.add_argument("--select", nargs="+", action="extend", default=[], metavar="COLUMN=VALUE")
    select.help = "only rows with these values (after FILE; a column or a setting)"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add FILE..., ``--select``, ``--baseline`` and ``--tuned``."""
    add_selection(parser)
    parser.add_argument(
        "--baseline", default=DEFAULT_BASELINE, metavar="ARM", help="label or name of what to compare with"
    )
    parser.add_argument("--tuned", nargs="*", default=TUNED, metavar="SETTING", help="settings that were tuned per arm")


def rows_of(options: argparse.Namespace, drafts: bool = False) -> list[Row]:
    """The rows asked for, of language models or of ``drafts``. What is left out goes to stderr. ValueError: none."""
    return read_for_user(options.file, parse_selection(options.select), drafts)


def comparisons_of(options: argparse.Namespace, *kinds: Sequence[Row]) -> list[list[Comparison]]:
    """The comparisons that rows of each of ``kinds`` (language models, drafts) make, the largest first.

    ValueError for a ``--baseline`` that no comparison has, or a ``--tuned`` setting that no row has."""
    check_settings(options.tuned, "--tuned", set(TUNED).union(*(row["config"] for rows in kinds for row in rows)))
    by_kind = [comparisons(rows, options.baseline, options.tuned) for rows in kinds]
    everything = [comparison for compared in by_kind for comparison in compared]
    if not any(comparison.baseline for comparison in everything):
        name = called(options.baseline, everything)
        if name != options.baseline:  # what figures call it
            return [comparisons(rows, name, options.tuned) for rows in kinds]
    check_baseline(options.baseline, everything)
    return by_kind
