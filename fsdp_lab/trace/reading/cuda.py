"""The trace of a run on a GPU, classified by the rules of `activity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsdp_lab.trace.reading.activity import Activity, Busy, Call
from fsdp_lab.trace.reading.chrome import Span, Trace
from fsdp_lab.trace.reading.labels import NOTHING, Label, Threads
from fsdp_lab.trace.reading.steps import host_steps, on_device
from fsdp_lab.trace.reading.traffic import itemsize, necessary, sent_marks

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver", "hip_runtime")
_NCCL = {"ReduceScatter": "reduce_scatter", "AllGather": "all_gather", "AllReduce": "all_reduce"}


def runs_on_cuda(trace: Trace) -> bool:
    """Whether anything in the trace ran on a GPU."""
    return any(span.category in ON_DEVICE for span in trace.spans)


def activity(trace: Trace) -> Activity:
    """The activity of a run on GPUs over NCCL. ValueError when the trace marks no step."""
    _, steps = host_steps(trace)
    threads, launches = Threads(trace.spans), _Launches(trace)
    busy: list[Busy] = []
    calls = sent_marks(trace)
    launched = []
    for span in trace.spans:
        if span.category not in ON_DEVICE:
            continue
        launch = launches.of(span)
        label = threads.at(launch.thread, launch.start) if launch is not None else NOTHING
        moment = launch.start if launch is not None else span.start
        launched.append((moment, (span.start, span.end)))
        busy.append(_busy(span, label))
        if span.name.startswith("nccl") and label.op is None and busy[-1].op is not None:
            calls.append(_stock_call(span, busy[-1].op, moment, trace.world))
    return Activity("cuda", on_device(steps, launched), busy, calls)


class _Launches:
    """Finds the span of the host that launched a kernel, copy or fill."""

    def __init__(self, trace: Trace) -> None:
        self._by_correlation = {s.args.get("correlation"): s for s in trace.spans if s.category in _LAUNCH}
        self._by_external = {s.args.get("External id"): s for s in trace.spans if s.category == "cpu_op"}
        for known in (self._by_correlation, self._by_external):
            known.pop(None, None)

    def of(self, span: Span) -> Span | None:
        by_correlation = self._by_correlation.get(span.args.get("correlation"))
        return by_correlation or self._by_external.get(span.args.get("External id"))


def _busy(span: Span, launched_in: Label) -> Busy:
    lane = f"stream {span.args.get('stream', span.thread[1])}"
    if span.name.startswith("nccl"):
        return Busy(span.start, span.end, "communication", lane, launched_in.op or _nccl_op(span))
    return Busy(span.start, span.end, launched_in.kind or "compute", lane, launched_in.op)


def _nccl_op(span: Span) -> str | None:
    if str(span.args.get("Collective name", "")).startswith("all_to_all") or "SendRecv" in span.name:
        return "all_to_all"
    return next((op for name, op in _NCCL.items() if name in span.name), None)


def _stock_call(span: Span, op: str, moment: int, world: int) -> Call:
    args: Mapping[str, Any] = span.args
    numel, size = args.get("In msg nelems"), itemsize(str(args.get("dtype", "")))
    if numel is None or size is None:
        return Call(op, moment, None, None)
    sent = necessary(op, int(numel), size, int(args.get("Group size", world)))
    return Call(op, moment, sent, sent)
