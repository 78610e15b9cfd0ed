"""The trace of a run on a CPU, classified by the rules of `activity`."""

from __future__ import annotations

from fsdp_lab.trace.reading.activity import Activity, Busy
from fsdp_lab.trace.reading.chrome import Trace
from fsdp_lab.trace.reading.labels import Threads
from fsdp_lab.trace.reading.steps import host_steps
from fsdp_lab.trace.reading.stock import gloo_calls
from fsdp_lab.trace.reading.traffic import sent_marks

TRAINING, NETWORK = "training thread", "network"
_MESSAGES = ("gloo:send", "gloo:recv")


def activity(trace: Trace) -> Activity:
    """The activity of a run on CPUs over gloo. ValueError when the trace marks no step."""
    thread, steps = host_steps(trace)
    threads = Threads(trace.spans)
    working = [
        Busy(s.start, s.end, s.label.kind, TRAINING, s.label.op)
        for s in threads.stretches.get(thread, [])
        if s.label.kind is not None
    ]
    stock, op_of = gloo_calls(trace, threads)
    transfers = [
        Busy(span.start, span.end, "communication", NETWORK, op_of.get(i))
        for i, span in enumerate(trace.spans)
        if span.name.startswith("gloo:") and span.name not in _MESSAGES
    ]
    posted = [(span.start, span.end) for span in trace.spans if span.name in _MESSAGES]
    return Activity("cpu", steps, working + transfers, sent_marks(trace) + stock, posted)
