"""One run's curve file: a JSON object a line, whose keys `fsdp_lab/run/storage/curve.py` lists.

A row names its file in ``loss_curve``, relative to the results file. The file may also lie in an archive
(`curve_archive`). A file that is missing or has half a line is reported, never fatal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analysis.rows.curves.archive import ArchiveError, read_curve_file
from analysis.rows.reading import Row, is_number

Lines = list[dict[str, Any]]


def read_curve(row: Row) -> tuple[Lines, list[str]]:
    """The lines of a row's curve file, and what is wrong with it."""
    path = row.curve
    if path is None:
        return [], ["its row names no loss curve"]
    return read_lines(path)


def read_lines(path: Path) -> tuple[Lines, list[str]]:
    """The objects of a curve file that have a step, and complaints with line numbers."""
    try:
        raw = read_curve_file(path).split(b"\n")
    except OSError as error:
        return [], [f"no curve: cannot read {path} ({error.strerror})"]
    except ArchiveError as error:
        return [], [f"no curve: {error}"]
    lines, complaints = [], []
    for number, text in enumerate(raw, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict) and is_number(line.get("step")):
            lines.append(line)
        else:
            complaints.append(f"{path}, line {number} left out: no whole line of a curve")
    return lines, complaints
