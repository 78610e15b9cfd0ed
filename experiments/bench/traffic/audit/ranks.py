"""One rank: every job in turn, audited, between two readings of the interface's counter."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import comm_compress as cc
from experiments.bench.traffic.audit.jobs import BUILDERS, Job
from experiments.bench.traffic.audit.runs import RUNS
from fsdp_lab.measure.wire_check import HEADER, Interface, interface_counters


def rank_main(run: str, repeats: int, only: list[str], folder: Path) -> None:
    """Measure the jobs of one run and leave a file for this rank in ``folder``."""
    dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _, jobs = RUNS[run]
    lines = [_measured(name, BUILDERS[name], repeats) for name in jobs if not only or name in only]
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(lines))
    dist.barrier()
    os._exit(0)


def _measured(name: str, build: Callable[[], Job], repeats: int) -> dict[str, Any]:
    job = build()
    job.once()  # what the first step alone does is left out: DDP sorts its buckets, a pipeline asks for shapes
    before = _interface()
    with cc.audit(*[handle for handle in (job.handle,) if handle is not None]) as audit:
        for _ in range(repeats):
            job.once()
    seen = _interface() - before
    return {
        "job": name,
        "sent_bytes": audit.sent_bytes,
        "ring_bytes": sum(line.ring_bytes for line in audit.lines),
        "payload_bytes": sum(line.payload_bytes for line in audit.lines),
        "claimed_bytes": sum(claim.sent_bytes or 0 for claim in audit.claims) if job.handle is not None else None,
        "interface_bytes": seen.sent_bytes,
        "interface_payload_bytes": seen.sent_bytes - HEADER * seen.packets,
        "resent_bytes": seen.resent_bytes,
        "not_counted": audit.not_counted,
        "lines": audit.rows(),
        "table": audit.table(),
    }


def _interface() -> Interface:
    """The counter at a moment when nothing is on its way: the barriers' own messages have no payload."""
    dist.barrier()
    counters = interface_counters(("eth0",))
    dist.barrier()
    return counters
