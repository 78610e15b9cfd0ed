"""Optimizer steps and their phases, found by the spans that the trainer records around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fsdp_lab.trace.reading.activity import Step
from fsdp_lab.trace.reading.chrome import Span, Thread, Trace
from fsdp_lab.trace.reading.intervals import Interval

PREFIX = "fsdp_lab::"
PHASES = ("forward", "backward", "optimizer", "other")  # other: what lies in a step and in none of the first three


def host_steps(trace: Trace) -> tuple[Thread, list[Step]]:
    """The thread that trains, and its steps. ValueError when the trace has none.

    Without the trainer's own spans the profiler's `ProfilerStep#` will do; then every phase is "other".
    """
    annotations = [span for span in trace.spans if span.category == "user_annotation"]
    steps = [span for span in annotations if span.name == PREFIX + "step"]
    steps = steps or [span for span in annotations if span.name.startswith("ProfilerStep#")]
    if not steps:
        raise ValueError(f"{trace.path}: no span says where a step begins ({PREFIX}step, or ProfilerStep#)")
    phases = {f"{PREFIX}{phase}": phase for phase in PHASES[:-1]}
    inner = [span for span in annotations if span.name in phases]
    return steps[0].thread, [_step(span, inner, phases) for span in steps]


def _step(whole: Span, inner: Iterable[Span], names: dict[str, str]) -> Step:
    phases: list[tuple[str, Interval]] = []
    at = whole.start
    for span in inner:
        if span.thread == whole.thread and whole.start <= span.start and span.end <= whole.end:
            phases += [("other", (at, span.start)), (names[span.name], (span.start, span.end))]
            at = span.end
    phases.append(("other", (at, whole.end)))
    return Step((whole.start, whole.end), [(name, (start, end)) for name, (start, end) in phases if start < end])


def on_device(steps: Sequence[Step], launched: Sequence[tuple[int, Interval]]) -> list[Step]:
    """``steps`` in the device's time. ``launched``: the host's moment of each launch, and when the device ran it."""
    order = sorted(launched)
    first_after: list[int] = []  # the earliest start among this launch and all later ones
    for _, (start, _) in reversed(order):
        first_after.append(min(start, first_after[-1]) if first_after else start)
    first_after.reverse()
    moments = sorted({moment for step in steps for _, interval in step.phases for moment in interval})
    begins: dict[int, int] = {}
    launch, busy_until = 0, 0
    for moment in moments:
        while launch < len(order) and order[launch][0] < moment:
            busy_until = max(busy_until, order[launch][1][1])
            launch += 1
        done = max(moment, busy_until)
        begins[moment] = min(done, max(moment, first_after[launch])) if launch < len(order) else done
    return [step._replace(phases=[(name, (begins[a], begins[b])) for name, (a, b) in step.phases]) for step in steps]
