"""Hand-made traces: events in microseconds, as torch.profiler writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

MAIN, GLOO = 7, 8
Event = dict[str, Any]


def event(name: str, start: float, end: float, category: str, tid: int = MAIN, **args: Any) -> Event:
    place = {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": tid}
    return {
        **place,
        "ts": 1000.0 + start,
        "dur": end - start,
        "args": {k.replace("_", " "): v for k, v in args.items()},
    }


def op(name: str, start: float, end: float, **args: Any) -> Event:
    return event(name, start, end, "cpu_op", **args)


def note(name: str, start: float, end: float, tid: int = MAIN, **args: Any) -> Event:
    return event(name, start, end, "user_annotation", tid, **args)


def shapes(*dims: list[Any], dtype: str = "float") -> dict[str, Any]:
    return {"Input_Dims": list(dims), "Input_type": [dtype] * len(dims)}


def kernel(name: str, start: float, end: float, correlation: int, stream: int = 1, **args: Any) -> Event:
    return event(name, start, end, "kernel", stream, correlation=correlation, stream=stream, **args)


def launch(at: float, correlation: int, tid: int = MAIN) -> Event:
    return event("cudaLaunchKernel", at, at + 1, "cuda_runtime", tid, correlation=correlation)


def write(
    folder: Path, events: list[Event], rank: int = 0, world: int = 2, backend: str = "gloo", gz: bool = False
) -> Path:
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world},
        "traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "args": {}}, *events],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank{rank}.123.pt.trace.json{'.gz' if gz else ''}"
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if gz else text)
    return path
