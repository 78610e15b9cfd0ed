"""Results rows as a pandas DataFrame: one line a run, one column a field.

    from analysis.rows.frames import frame
    runs = frame("results/results.jsonl", status="ok")
    runs.groupby(["config.model", "arm"])["val_ppl"].agg(["mean", "std", "count"])

Fields that are objects become a column for each of their entries (``config.max_steps``,
``bytes_compressed_by_op.all_gather``). A method's settings, and what is an object or a list within those, are JSON
text, so that every cell is one value and rows can be grouped by it. ``arm`` is the label that reports use; ``file``
and ``line`` say where a row stood.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.rows.comparing.arms import Arm
from analysis.rows.comparing.canonical import canonical
from analysis.rows.reading import Row, read_all, select

_SETTINGS = ("compress_config", "param_compress_config")  # of a method: each has its own, and {} is a value


def frame(paths: str | Path | Iterable[str | Path], **wanted: Any) -> pd.DataFrame:
    """The sound rows of JSON-lines files, of language models and of drafts, in order.

    ``wanted``: as `rows.select` takes it, ``seed=[1, 2]``. Columns have pandas's types that know a missing value
    (``Int64``, ``Float64``, ``boolean``, ``string``). ValueError when a file cannot be read or no row is left."""
    return frame_of(select(read_all(paths), **wanted))


def frame_of(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows that have been read, as `frame` makes them."""
    return pd.DataFrame([_flat(row) for row in rows]).convert_dtypes()


def _flat(row: Row) -> dict[str, Any]:
    """One row as the cells of a line of the frame, by column."""
    cells: dict[str, Any] = {"file": str(row.file), "line": row.line, "arm": Arm.of(row).label}
    for name, value in row.items():
        if isinstance(value, dict) and name not in _SETTINGS:
            cells |= {f"{name}.{key}": _cell(item) for key, item in value.items()}
        else:
            cells[name] = _cell(value)
    return cells


def _cell(value: Any) -> Any:
    return canonical(value) if isinstance(value, dict | list) else value
