"""Flags that all programs over results rows share."""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis.arms import TUNED, Comparison, comparisons
from analysis.rows import Row, parse_selection, read_for_user


def add_options(parser: argparse.ArgumentParser) -> None:
    """FILE..., ``--select``, ``--baseline`` and ``--tuned``."""
    parser.add_argument("file", type=Path, nargs="+", help="results.jsonl")
    select = parser.add_argument("--select", nargs="+", action="extend", default=[], metavar="COLUMN=VALUE")
    select.help = "only rows with these values (after FILE; a column or a setting)"
    parser.add_argument("--baseline", default="none", metavar="ARM", help="label of the arm to compare with")
    parser.add_argument("--tuned", nargs="*", default=TUNED, metavar="SETTING", help="settings that were tuned per arm")


def rows_of(options: argparse.Namespace, drafts: bool = False) -> list[Row]:
    """The rows asked for, of language models or of ``drafts``; what is left out is said on stderr. ValueError: none."""
    return read_for_user(options.file, parse_selection(options.select), drafts)


def comparisons_of(options: argparse.Namespace, rows: list[Row]) -> list[Comparison]:
    """What those rows compare, the largest first."""
    return comparisons(rows, options.baseline, options.tuned)
