"""A torch.profiler window over a few steps: traces on request, and the traffic of stock FSDP2 collectives.

A stock collective passes no hook of ours, so its bytes and times come from the profiler: it records every
c10d call with its shapes, and how long the backend worked on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

Op = Literal["reduce_scatter", "all_gather"]
OPS: tuple[Op, ...] = ("reduce_scatter", "all_gather")
_CALLS: dict[str, Op] = {"c10d::_reduce_scatter_base_": "reduce_scatter", "c10d::_allgather_base_": "all_gather"}
# who did the work: gloo's threads (its reduce-scatter is an all-reduce), or NCCL's kernels
_WORK: dict[str, Op] = {
    "gloo:all_reduce": "reduce_scatter",
    "gloo:reduce_scatter": "reduce_scatter",
    "gloo:all_gather": "all_gather",
}
_KERNELS: dict[str, Op] = {"ncclDevKernel_ReduceScatter": "reduce_scatter", "ncclDevKernel_AllGather": "all_gather"}


@dataclass
class OpTraffic:
    """One collective's traffic, one rank: elements and bytes that go to other ranks, and milliseconds."""

    elements: float = 0.0
    raw_bytes: float = 0.0
    sent_bytes: float = 0.0
    milliseconds: float = 0.0


@dataclass
class StockTraffic:
    """Traffic of stock collectives over a window of ``steps`` optimizer steps."""

    steps: int = 0
    ops: dict[Op, OpTraffic] = field(default_factory=lambda: {op: OpTraffic() for op in OPS})

    def per_step(self, op: Op) -> OpTraffic:
        """The mean over the window's steps (zeros when nothing was seen)."""
        seen, steps = self.ops[op], max(1, self.steps)
        return OpTraffic(
            seen.elements / steps, seen.raw_bytes / steps, seen.sent_bytes / steps, seen.milliseconds / steps
        )

    def add(self, events: Iterable[Any], steps: int, world: int, itemsize: dict[Op, int], backend: str) -> None:
        """Enter the function events of a window of ``steps``; ``itemsize`` is each operation's bytes an element."""
        self.steps += steps
        for event in events:
            op = _CALLS.get(event.name)
            if op is not None:
                whole = max((_numel(shape) for shape in event.input_shapes[:2]), default=0)
                elements = whole * (world - 1) / world
                self.ops[op].elements += elements
                self.ops[op].raw_bytes += elements * itemsize[op]
                self.ops[op].sent_bytes += elements * itemsize[op] * _gloo_factor(op, backend)
            op = _WORK.get(event.name) or next((o for k, o in _KERNELS.items() if event.name.startswith(k)), None)
            if op is not None:
                self.ops[op].milliseconds += (event.time_range.end - event.time_range.start) / 1e3


def _gloo_factor(op: Op, backend: str) -> int:
    """gloo's reduce_scatter is an all_reduce: twice the necessary bytes (checked against the interface's counter)."""
    return 2 if op == "reduce_scatter" and backend == "gloo" else 1


def _numel(shape: list[int]) -> int:
    return int(torch.Size(shape).numel()) if shape else 0


class Window:
    """The profiled steps ``first`` to ``last``."""

    def __init__(self, first: int, steps: int, traces: Path | None, rank: int) -> None:
        self.first, self.last, self.steps = first, first + steps - 1, steps
        self._traces, self._rank = traces, rank
        self._profiler: profile | None = None

    def disturbs(self, step: int) -> bool:
        """Does profiling slow this step down? The two after the window too: ranks close their profilers unevenly."""
        return self.first <= step <= self.last + 2

    @property
    def is_open(self) -> bool:
        """Started and not yet ended?"""
        return self._profiler is not None

    def begin_step(self, step: int) -> None:
        """Start profiling when ``step`` is the first of the window."""
        if step == self.first:
            activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
            self._profiler = profile(activities=activities, record_shapes=True)
            self._profiler.start()

    def close(self) -> Iterable[Any]:
        """End the window; its function events. Writes the trace when one was asked for."""
        assert self._profiler is not None
        self._profiler.stop()
        events = self._profiler.events()  # type: ignore[no-untyped-call]
        if self._traces is not None:
            tensorboard_trace_handler(str(self._traces), worker_name=f"rank{self._rank}")(self._profiler)
        self._profiler = None
        return events or []
