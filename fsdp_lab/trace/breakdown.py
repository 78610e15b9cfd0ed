"""Where one rank's time went, step by step and phase by phase, and what its collectives moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean

from fsdp_lab.trace.reading.activity import OPS, Activity, Step
from fsdp_lab.trace.reading.intervals import Intervals, difference, intersection, length, union
from fsdp_lab.trace.reading.steps import PHASES


@dataclass(frozen=True)
class Times:
    """How many milliseconds of an interval, such as a step or a phase, each class of activity took.

    ``total`` = compute + exposed_communication + exposed_compression - both_exposed + idle, and
    communication = communication_under_compute + exposed_communication.
    """

    total: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    compression: float = 0.0
    communication_under_compute: float = 0.0
    communication_under_compression: float = 0.0
    compression_under_compute: float = 0.0
    exposed_communication: float = 0.0  # not covered by compute
    exposed_compression: float = 0.0  # not covered by compute
    both_exposed: float = 0.0  # communication and compression at once, no compute
    idle: float = 0.0  # none of the three
    communication_at_most: float = 0.0  # had every message been under way from posting to the end of waiting
    hidden_at_most: float = 0.0  # of that, under compute


@dataclass(frozen=True)
class Traffic:
    """All collectives of one operation in one step.

    ``milliseconds``: with at least one of them under way; ``exposed``: those of them without compute at the same time.
    Bytes are None when the trace does not tell the bytes of every collective.
    """

    count: float = 0.0
    milliseconds: float = 0.0
    exposed: float = 0.0
    raw_bytes: float | None = None
    sent_bytes: float | None = None

    @property
    def raw_gbps(self) -> float | None:
        """Effective bandwidth in uncompressed bytes, GB/s (1e9): how fast the link seems, thanks to compression."""
        return self._per_second(self.raw_bytes)

    @property
    def sent_gbps(self) -> float | None:
        """Effective bandwidth in bytes sent, GB/s (1e9)."""
        return self._per_second(self.sent_bytes)

    def _per_second(self, count: float | None) -> float | None:
        return count / self.milliseconds / 1e6 if count is not None and self.milliseconds else None


@dataclass(frozen=True)
class StepTimes:
    """The times of one step of one rank: of the whole step, of each phase, and of each kind of collective."""

    whole: Times
    phases: dict[str, Times]
    collectives: dict[str, Traffic] = field(default_factory=dict)

    def share_of_step(self, op: str) -> float | None:
        """The share of the step's time with a collective of ``op`` under way, hidden or not; None for an empty step."""
        return _share(self.collectives[op].milliseconds, self.whole.total)

    def share_of_communication(self, op: str) -> float | None:
        """The share of all communication time. The shares add up to more than 1 where two operations ran at once."""
        return _share(self.collectives[op].milliseconds, self.whole.communication)


def _share(milliseconds: float, whole: float) -> float | None:
    return milliseconds / whole if whole else None


def step_times(activity: Activity) -> list[StepTimes]:
    """The times of every step. ``collectives`` has only the operations that occur in the step."""
    compute = union(activity.of("compute"))
    communication = union(activity.of("communication"))
    compression = union(activity.of("compression"))
    at_most = union(communication, activity.posted)

    def times(window: Intervals) -> Times:
        return _times(window, *(intersection(window, kind) for kind in (compute, communication, compression, at_most)))

    steps = []
    for step in activity.steps:
        phases = {phase: times(union(interval for name, interval in step.phases if name == phase)) for phase in PHASES}
        steps.append(StepTimes(times([step.whole]), phases, _collectives(activity, step, compute)))
    return steps


def _times(
    window: Intervals, compute: Intervals, communication: Intervals, compression: Intervals, at_most: Intervals
) -> Times:
    exposed, exposed_compression = difference(communication, compute), difference(compression, compute)
    nanoseconds = {
        "total": window,
        "compute": compute,
        "communication": communication,
        "compression": compression,
        "communication_under_compute": intersection(communication, compute),
        "communication_under_compression": intersection(communication, compression),
        "compression_under_compute": intersection(compression, compute),
        "exposed_communication": exposed,
        "exposed_compression": exposed_compression,
        "both_exposed": intersection(exposed, exposed_compression),
        "idle": difference(window, union(compute, communication, compression)),
        "communication_at_most": at_most,
        "hidden_at_most": intersection(at_most, compute),
    }
    return Times(**{name: length(intervals) / 1e6 for name, intervals in nanoseconds.items()})


def _collectives(activity: Activity, step: Step, compute: Intervals) -> dict[str, Traffic]:
    traffic = {}
    for op in OPS:
        calls = [c for c in activity.calls if c.op == op and step.host[0] <= c.moment < step.host[1]]
        transfers = union((b.start, b.end) for b in activity.busy if b.op == op and b.kind == "communication")
        under_way = intersection([step.whole], transfers)
        if calls or under_way:
            raw, sent = (_total(getattr(c, name) for c in calls) for name in ("raw", "sent"))
            exposed = length(difference(under_way, compute)) / 1e6
            traffic[op] = Traffic(len(calls), length(under_way) / 1e6, exposed, raw, sent)
    return traffic


def _total(counts: Iterable[int | None]) -> float | None:
    known = list(counts)
    return float(sum(c for c in known if c is not None)) if known and None not in known else None


def mean_times(several: Sequence[Times]) -> Times:
    """The mean of ``several``, field by field."""
    return Times(**{f.name: fmean(getattr(t, f.name) for t in several) for f in fields(Times)})


def mean_traffic(several: Sequence[dict[str, Traffic]]) -> dict[str, Traffic]:
    """The mean traffic of several steps or ranks, for each operation; who has no collective of it counts as zero."""
    mean = {}
    for op in OPS:
        if any(op in one for one in several):
            each = [one.get(op, Traffic(raw_bytes=0.0, sent_bytes=0.0)) for one in several]
            mean[op] = Traffic(*(_mean(getattr(t, f.name) for t in each) for f in fields(Traffic)))  # type: ignore[arg-type]
    return mean


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return fmean(v for v in known if v is not None) if None not in known else None
