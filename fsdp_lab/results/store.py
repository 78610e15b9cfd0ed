"""The JSONL file of results: its rows survive a kill at any byte, several writers, and lines that others left damaged.

A truncated last line would swallow the next row, and a NaN would make a line unreadable for strict parsers. Therefore
the writer moves a truncated line to ``FILE.rejected``, writes null for a NaN, and refuses what no reader would take.
"""

import errno
import json
import logging
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from fsdp_lab.files.atomic import make_folder
from fsdp_lab.results.migrate import migrate
from fsdp_lab.results.schema import FIELDS, SCHEMA_VERSION
from fsdp_lab.results.validation import problems
from fsdp_lab.settings.reading.strict import load_json
from fsdp_lab.settings.user_errors import printable

_LOCK_TIMEOUT_S = 60
_log = logging.getLogger(__name__)


def append(path: str | os.PathLike[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """Adds one row as a line of strict JSON, durably; returns the row as written.

    ``schema_version`` and ``time_utc`` are filled in. A row that does not fit the schema raises ValueError naming every
    bad field, and is written to ``FILE.rejected`` rather than lost. OSError when the disk refuses to write.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    stamp = {"schema_version": SCHEMA_VERSION, "time_utc": datetime.now(UTC).isoformat(timespec="seconds")}
    filled, lost = _finite({**stamp, **row}, "")
    filled["nonfinite_fields"] = [*(row.get("nonfinite_fields") or []), *lost]
    complaints = problems(filled)
    with FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_S):
        if complaints:
            _set_aside(path, json.dumps(filled, default=repr, skipkeys=True).encode())
            raise ValueError(f"results row refused (kept in {path}.rejected): " + "; ".join(complaints))
        whole = {field.name: filled.get(field.name) for field in FIELDS}
        _write(path, _mend(path) + json.dumps(whole, allow_nan=False).encode() + b"\n")
    return whole


def ensure_appendable(path: str | os.PathLike[str]) -> None:
    """Makes the file's folder; ValueError when a row could not be written there (better before a run than after)."""
    path = Path(path)
    make_folder(path.parent, "results_path")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"results_path: {path} is a folder or not writable; name a file such as results.jsonl")


def load(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The sound rows of a file, in order; every line left out is logged with its number and the reason.

    Rows of earlier schema versions are returned in the present version, with ``migrated_from``.
    ValueError when there is no such file.
    """
    rows = []
    for number, row, complaints in scan(path):
        if row is None:
            _log.warning("%s, line %d left out: %s", path, number, printable("; ".join(complaints)))
        else:
            rows.append(row)
    return rows


def scan(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any] | None, list[str]]]:
    """Yields number (from 1), row and complaints of every line that is not blank; with complaints the row is None."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise ValueError(f"cannot read results file {path} ({error.strerror})") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            row, complaints = _parse(line)
            yield number, row, complaints


def _parse(line: bytes) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        row = load_json(line)
    except ValueError as error:  # also bytes that are not UTF-8
        return None, [str(error)]
    if not isinstance(row, dict):
        return None, ["not a JSON object"]
    row = migrate(row)
    complaints = problems(row)
    return (None, complaints) if complaints else (row, [])


def _finite(value: Any, name: str) -> tuple[Any, list[str]]:
    """``value`` with null for every NaN and infinity, and the dotted names of those."""
    if isinstance(value, float) and not math.isfinite(value):
        return None, [name]
    if not isinstance(value, dict | list | tuple):
        return value, []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    cleaned = {key: _finite(item, f"{name}.{key}" if name else str(key)) for key, item in items}
    finite = {key: item for key, (item, _) in cleaned.items()}
    lost = [lost for _, names in cleaned.values() for lost in names]
    return (finite if isinstance(value, dict) else list(finite.values())), lost


def _mend(path: Path) -> bytes:
    """Makes the file end in a whole line; returns what to write before the next row (a missing newline, or nothing)."""
    if not path.exists() or path.stat().st_size == 0:
        return b""
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.rfind(b"\n") + 1
            fragment = content[start:]
        if not fragment:
            return b""
        if _is_row(fragment):  # killed between the row and its newline
            return b"\n"
        _set_aside(path, fragment)  # before the truncation: a kill in between duplicates, it does not lose
        file.truncate(start)
        os.fsync(file.fileno())
    _log.warning("%s ended in a truncated line (%d bytes); moved to %s.rejected", path, len(fragment), path)
    return b""


def _is_row(fragment: bytes) -> bool:
    try:
        return isinstance(load_json(fragment), dict)
    except ValueError:
        return False


def _set_aside(path: Path, line: bytes) -> None:
    _write(path.with_name(path.name + ".rejected"), line + b"\n")


def _write(path: Path, data: bytes) -> None:
    """One write call at the end of the file, flushed to the disk; all of ``data`` or none of it."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        if os.write(file, data) < len(data):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(file)
    finally:
        os.close(file)
