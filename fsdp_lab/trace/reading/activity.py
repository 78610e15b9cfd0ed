"""What one rank did, in three classes: compute, communication and compression. The rules are the same for every trace.

A moment may belong to several classes: that is overlap.

**On a CPU** (a trace without kernels), on the thread that runs the training steps, the innermost span decides:

- compression: inside `comm_compress::<collective>`, with the search for NaN before and the copying after;
- communication: inside `comm_compress::wire` (posting messages, waiting for them), and inside calls of
  `c10d::` and `_c10d_functional::`;
- compute: inside any other operator; FSDP2's own packing of tensors too;
- none: Python between operators, and FSDP2's hooks outside their operators, where it waits for collectives.

Communication is also every moment of a collective on gloo's own threads (`gloo:all_gather` and the like). While the
training thread computes, this communication is hidden; while that thread waits in one of FSDP2's hooks, it is exposed.
Other spans of other threads are not counted. A single message (`gloo:send`, `gloo:recv`) is different: its span ends
when the program has waited for it, however long ago it arrived, and nothing in a trace says when that was. So of
comm_compress's exchanges only the posting and the waiting count as communication. What they
hide behind compute lies between nothing and all of the time that messages were posted, and the overlap ratio comes
with that upper bound (`communication_at_most`, `hidden_at_most`). Exposed communication is exact in both cases.

**On CUDA** the host's times are not counted; kernels, copies and fills on all streams are:

- communication: kernels named `nccl...`;
- otherwise what the thread was doing that launched them (found by the correlation id, without one by the external id),
  by the rules above: kernels of encoding and decoding are compression, copies on the way to the wire communication;
- compute: everything else.

A step or a phase begins on the device when the host begins it, or later: when the device is done with what was
launched before, or when it starts what was launched in it, whichever is first. So a gradient's kernel that still runs
when the device starts on the optimizer counts as the optimizer's time from then on.

**Collectives.** The spans of comm_compress state their bytes (`comm_compress::sent`). The bytes of stock gloo and NCCL
are computed from the shapes that the profiler recorded: what a rank must send (`raw`), and what it does send, which is
the same, but twice as much for a reduce-scatter of gloo, which is an all-reduce. Their time is the communication above,
waiting for slower ranks included; so the bandwidth of a prefetched all-gather is the one that the training thread saw.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fsdp_lab.trace.reading.intervals import Interval
from fsdp_lab.trace.reading.labels import Class

OPS = ("reduce_scatter", "all_gather", "all_reduce", "all_to_all", "outer", "optimizer")


class Busy(NamedTuple):
    """An interval in which one thread or stream (``lane``) did work of one class; ``op``: for this collective."""

    start: int
    end: int
    kind: Class
    lane: str
    op: str | None = None


class Call(NamedTuple):
    """A collective that the host called at ``moment``, with the bytes of this rank (None: the trace does not say)."""

    op: str
    moment: int
    raw: int | None
    sent: int | None


class Step(NamedTuple):
    """One optimizer step: the host's time in it, and its phases in order (on CUDA in the device's time)."""

    host: Interval
    phases: list[tuple[str, Interval]]

    @property
    def whole(self) -> Interval:
        """The interval from the beginning of the first phase to the end of the last."""
        return self.phases[0][1][0], self.phases[-1][1][1]


@dataclass(frozen=True)
class Activity:
    """Everything that one trace says by the rules above. ``device`` is cpu or cuda."""

    device: str
    steps: list[Step]
    busy: list[Busy]
    calls: list[Call]
    posted: list[Interval] = field(default_factory=list)  # messages that were, for some of this time, under way

    def of(self, kind: Class) -> list[Interval]:
        """The intervals with work of ``kind``; they may overlap."""
        return [(busy.start, busy.end) for busy in self.busy if busy.kind == kind]
