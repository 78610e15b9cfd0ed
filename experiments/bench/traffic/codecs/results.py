"""What was measured so far, and the files that it goes to."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.bench.traffic.codecs.tables import peer_table, table
from experiments.bench.traffic.codecs.timing import Timing
from fsdp_lab.files.atomic import write_bytes, write_json
from fsdp_lab.run.environment import hardware, versions

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclasses.dataclass
class Results:
    """What was measured so far: rows, peers that are not installed, and why methods failed, by label."""

    rows: list[Timing] = dataclasses.field(default_factory=list)
    missing: set[str] = dataclasses.field(default_factory=set)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


def page(results: Results) -> str:
    """The tables, and what failed."""
    failed = [f"\nFailed: {name}: {why}" for name, why in results.failed.items()]
    return "\n".join(part for part in (table(results.rows), peer_table(results.rows, results.missing), *failed) if part)


def write(options: argparse.Namespace, results: Results, device: torch.device) -> None:
    """Write the files that were asked for, but for the chart."""
    if options.json is not None:
        settings = {key: getattr(options, key) for key in ("device", "methods", "mib", "threads", "repeats")}
        record = {
            "machine": machine(device, results.rows),
            "settings": settings,
            "missing_peers": sorted(results.missing),
        }
        rows = [as_json(row) for row in results.rows]
        write_json(options.json, {**record, "failed": results.failed, "rows": rows})
    if options.markdown is not None:
        write_bytes(options.markdown, (page(results) + "\n").encode())


def machine(device: torch.device, rows: Sequence[Timing]) -> dict[str, Any]:
    """What was measured on: hardware, caches, versions, and the bandwidth of a plain copy by number of threads."""
    known = hardware()
    del known["host"]
    copies: dict[int, list[float]] = {}
    for row in rows:
        copies.setdefault(row.threads, []).append(2 * row.copied_bytes / row.copy_seconds / 1e9)
    return {
        **known,
        "caches": caches(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else known["cpu"],
        "memory_gb_s": {threads: round(statistics.median(c), 2) for threads, c in copies.items()},
        "versions": versions(),
    }


def caches() -> dict[str, str]:
    """The sizes of the processor's caches as Linux gives them, by level and kind; empty on other systems."""
    sizes = {}
    for index in sorted(CACHES.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        sizes[f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")] = size
    return sizes


def as_json(row: Timing) -> dict[str, Any]:
    """A row, and the numbers that follow from it, for JSON."""
    derived = {"gb_s": row.gb_s, "memcpy_ratio": row.memcpy_ratio, "roofline": row.roofline}
    return {**dataclasses.asdict(row), **derived}
