"""Reading the Chrome traces that torch.profiler writes: one file for each rank, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Thread = tuple[Any, Any]  # process and thread; on a GPU device and stream
PATTERNS = ("*.pt.trace.json", "*.pt.trace.json.gz")  # what TensorBoard's plugin looks for


class Span(NamedTuple):
    """One complete event of the trace (``"ph": "X"``); times are nanoseconds."""

    name: str
    category: str
    thread: Thread
    start: int
    end: int
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Trace:
    """One rank's trace, its spans sorted by start. ``clock`` is equal for traces whose times can be compared."""

    path: Path
    rank: int
    world: int
    backend: str
    clock: tuple[Any, ...]
    spans: list[Span]


def find(folder: Path) -> list[Path]:
    """The paths of the traces in ``folder``, or in its ``profiler/``. ValueError when there are none."""
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: {'is not a folder' if folder.exists() else 'no such folder'}; name one with traces"
        )
    for searched in (folder, folder / "profiler"):
        if traces := sorted({path for pattern in PATTERNS for path in searched.glob(pattern)}):
            return traces
    raise ValueError(
        f"{folder}: no traces ({', '.join(PATTERNS)}) in it; a training run with --profile leaves them in "
        "<output_dir>/logs/<run_name>/profiler"
    )


def read(path: Path) -> Trace:
    """Reads one trace. ValueError when the file is incomplete or no trace."""
    document = _document(path)
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise ValueError(f"{path}: no traceEvents in it, so it is not a trace of torch.profiler")
    about = document.get("distributedInfo") or {}
    spans = [_span(e) for e in events if e.get("ph") == "X" and e.get("cat") not in (None, "Trace")]
    return Trace(
        path,
        rank=int(about.get("rank", _rank_in(path.name))),
        world=int(about.get("world_size", 1)),
        backend=str(about.get("backend", "")),
        clock=(document.get("host_name"), document.get("baseTimeNanoseconds")),
        spans=sorted(spans, key=lambda span: (span.start, -span.end)),
    )


def _document(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path}: not a whole trace ({error}): was the run stopped while writing it? Remove it, or profile again"
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None


def _span(event: Mapping[str, Any]) -> Span:
    start, end = round(event["ts"] * 1000), round((event["ts"] + event.get("dur", 0)) * 1000)
    return Span(event["name"], event["cat"], (event.get("pid"), event.get("tid")), start, end, event.get("args") or {})


def _rank_in(name: str) -> int:
    match = re.match(r"rank[-_]?(\d+)", name)
    return int(match[1]) if match else 0
