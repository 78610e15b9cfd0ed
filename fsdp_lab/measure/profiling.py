"""A torch.profiler window over a few steps: traces on request, and the traffic of stock FSDP2 collectives.

A stock collective passes no hook of ours, so its bytes and times come from the profiler, which records every
c10d call with its shapes and how long the backend worked on it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import comm_compress as cc
from fsdp_lab.measure.wire_check import Claim

OPS: tuple[cc.Op, ...] = ("reduce_scatter", "all_gather")
STEP = "fsdp_lab::step"  # the profiler's span around an optimizer step
_CALLS: dict[cc.Op, str] = {"reduce_scatter": "c10d::_reduce_scatter_base_", "all_gather": "c10d::_allgather_base_"}
# who did the work: gloo's threads (its reduce-scatter is an all-reduce), or NCCL's kernels
_WORK: dict[cc.Op, tuple[str, ...]] = {
    "reduce_scatter": ("gloo:all_reduce", "ncclDevKernel_ReduceScatter"),
    "all_gather": ("gloo:all_gather", "ncclDevKernel_AllGather"),
}


class StepCalls(NamedTuple):
    """One rank's calls of one stock collective in one step, in order: whole sizes in elements, and milliseconds."""

    sizes: list[int]
    milliseconds: list[float]


StockCalls = list[dict[cc.Op, StepCalls]]  # step by step


class Span(NamedTuple):
    """From when to when, in microseconds."""

    start: float
    end: float


class Event(NamedTuple):
    """What a profiler saw of one call: its name, its time, and the sizes of its tensors."""

    name: str
    time_range: Span
    input_shapes: list[list[int]]


def _events(results: Any) -> list[Event]:
    """Those of a finished profile's events that `stock_calls` looks at.

    Not `torch.profiler.profile.events()`: it makes a Python object of every operation of the window, with all that is
    known of each, which takes seconds on every rank.
    """
    wanted = (STEP, *_CALLS.values(), *_WORK["reduce_scatter"], *_WORK["all_gather"])
    begin = results.trace_start_ns()
    return [
        Event(event.name(), Span((event.start_ns() - begin) / 1e3, (event.end_ns() - begin) / 1e3), event.shapes())
        for event in results.events()
        if event.name().startswith(wanted)
    ]


def stock_calls(events: Iterable[Event]) -> StockCalls:
    """This rank's stock collectives, from a profiler's events with a `STEP` span around every step."""
    ordered = sorted(events, key=lambda e: e.time_range.start)
    spans = [e.time_range for e in ordered if e.name == STEP]
    steps = [[e for e in ordered if span.start <= e.time_range.start < span.end] for span in spans]
    return [{op: _calls(step, op) for op in OPS} for step in steps]


def _calls(events: list[Event], op: cc.Op) -> StepCalls:
    sizes = [max(math.prod(shape) for shape in e.input_shapes[:2]) for e in events if e.name == _CALLS[op]]
    # gloo names the algorithm, not the caller: the optimizer's own all-reduces are told by their sizes
    work = [e for e in events if e.name.startswith(_WORK[op]) and not (_is_all_reduce(e) and _numel(e) not in sizes)]
    return StepCalls(sizes, [(e.time_range.end - e.time_range.start) / 1e3 for e in work])


def _is_all_reduce(event: Event) -> bool:
    return event.name == "gloo:all_reduce"


def _numel(event: Event) -> int:
    return math.prod(event.input_shapes[0]) if event.input_shapes else 0


@dataclass
class OpTraffic:
    """One collective's traffic in one optimizer step: elements, bytes and messages a rank sends, and milliseconds."""

    elements: int = 0
    raw_bytes: int = 0
    sent_bytes: int = 0
    messages: int = 0
    milliseconds: float = 0.0


class StockTraffic:
    """Traffic of stock collectives in one optimizer step, from all ranks' calls in a window of several.

    A call's time is the shortest of any rank's: who arrives last waits for nobody. Of the steps the median
    counts, the first left out. So neither ranks that the profiler slows unevenly nor one odd step are taken
    for communication. It is the time of the transfer, also where a prefetched all-gather hides it behind computation;
    our own ledger counts what had to be waited for.
    """

    def __init__(self, by_rank: list[StockCalls], itemsize: dict[cc.Op, int], backend: str) -> None:
        self.ops = {op: OpTraffic() for op in OPS}
        steps = list(zip(*by_rank, strict=True))
        for op in OPS if steps else ():
            elements = sum(steps[-1][0][op].sizes) * (len(by_rank) - 1) // len(by_rank)
            raw = elements * itemsize[op]
            milliseconds = [_fastest([rank[op].milliseconds for rank in ranks]) for ranks in steps[1:] or steps]
            factor = _gloo_factor(op, backend)
            messages = 2 * factor * (len(by_rank) - 1) * len(steps[-1][0][op].sizes)  # gloo halves each rank's part
            self.ops[op] = OpTraffic(elements, raw, raw * factor, messages, statistics.median(milliseconds))

    @property
    def sent_bytes(self) -> int:
        """What a rank sends in one step by stock collectives, both kinds."""
        return sum(op.sent_bytes for op in self.ops.values())

    @property
    def claim(self) -> Claim:
        """The bytes that a rank sends in one step by stock collectives, and the messages they take on gloo."""
        return Claim(self.sent_bytes, sum(op.messages for op in self.ops.values()))


def _fastest(by_rank: list[list[float]]) -> float:
    """The sum over calls of the time of the rank that took the shortest."""
    return math.fsum(min(call) for call in zip(*by_rank, strict=False))


def _gloo_factor(op: cc.Op, backend: str) -> int:
    """gloo's reduce_scatter is an all_reduce: twice the necessary bytes (checked against the interface's counter)."""
    return 2 if op == "reduce_scatter" and backend == "gloo" else 1


def phase(name: Literal["forward", "backward", "optimizer"]) -> AbstractContextManager[Any]:
    """Name a phase of a step, for whoever reads the profile."""
    return record_function(f"fsdp_lab::{name}")


class Window:
    """The profiled steps ``first`` to ``last``, if any. A step before them, if there is one after ``done``, warms the
    profiler up.

    ``trace`` is where this rank's trace is written, if it is wanted.
    """

    def __init__(self, first: int, steps: int, traces: Path | None, rank: int, done: int = 0) -> None:
        self.first, self.last = first, first + steps - 1
        # named as TensorBoard's plugin wants it: worker, number, ending
        self.trace = traces / f"rank{rank}.{time.time_ns()}.pt.trace.json" if traces is not None else None
        self._profiles = steps > 0
        self._warmup = min(1, first - 1 - done)
        self._profiler: profile | None = None
        self._step: record_function | None = None

    def disturbs(self, step: int) -> bool:
        """Does profiling slow this step down? It does so for two steps more: ranks close their profilers unevenly."""
        return self._profiles and self.first - self._warmup <= step <= self.last + 2

    def begin_step(self, step: int) -> None:
        """Start profiling when the step that begins is the first of the window, or the one before; mark the step."""
        if step == self.first - self._warmup and self._profiles:
            activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
            recorded = self.last - self.first + 1
            steps = schedule(wait=0, warmup=1, active=recorded, repeat=1) if self._warmup else None  # None: at once
            self._profiler = profile(activities=activities, schedule=steps, record_shapes=True)
            self._profiler.start()
        if self._profiler is not None:
            self._step = record_function(STEP)
            self._step.__enter__()  # type: ignore[no-untyped-call]

    def end_step(self) -> None:
        """End the mark of this step: the logging and evaluation that follow are no part of it."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def collect(self, step: int) -> list[Event] | None:
        """After the last step of the window: its events (the trace is written, if asked for); else None."""
        if self._profiler is None:
            return None
        if step != self.last:
            self._profiler.step()
            return None
        self._profiler.stop()
        finished = self._profiler.profiler
        events = _events(finished.kineto_results) if finished is not None else []
        if self.trace is not None:
            self.trace.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.trace.with_suffix(".unfinished")  # no half-written trace if the run is killed here
            self._profiler.export_chrome_trace(str(unfinished))
            unfinished.rename(self.trace)
        self._profiler = None
        return events

    def close(self) -> None:
        """Profile no more, also where the run ends in the middle of the window.

        A profiler that goes on holds tensors, so that no other model could be given its memory in this process.
        """
        self.end_step()
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
