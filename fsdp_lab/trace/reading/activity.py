"""What one rank's trace says in terms of our three classes, wherever it ran.

The rules. A moment may belong to several classes: that is overlap.

**On a CPU** (a trace without kernels), on the thread that runs the training steps, the innermost span decides:

- compression: inside `comm_compress::<collective>`, with the looking for NaN before and the copying after;
- communication: inside `comm_compress::wire` (posting messages, waiting for them), and inside calls of
  `c10d::` and `_c10d_functional::`;
- compute: inside any other operator; FSDP2's own packing of tensors too;
- none: Python between operators, and FSDP2's hooks outside their operators, where it waits for collectives.

Besides, communication lasts as long as a collective of gloo's own threads (`gloo:all_gather` and the like): while the
training thread does something else it is hidden behind it, while that waits in one of FSDP2's hooks it is exposed.
Other spans of other threads count nothing. A single message (`gloo:send`, `gloo:recv`) is another matter: its span ends
when the program has waited for it, however long ago it arrived, and nothing in a trace says when that was. So of
comm_compress's exchanges only the posting and the waiting count as communication; what they
hide behind compute lies between nothing and all of the time that messages were posted, and the overlap ratio comes
with that upper bound (`communication_at_most`, `hidden_at_most`). Exposed communication is exact either way.

**On CUDA** the host's times count nothing; kernels, copies and fills on all streams do:

- communication: kernels named `nccl...`;
- else what the thread was doing that launched them (found by the correlation id, without one by the external id), by
  the rules above: kernels of encoding and decoding are compression, copies on the way to the wire communication;
- compute: everything else.

A step, and a phase in it, begins on the device when the host begins it, or later: when the device is done with what was
launched before, or starts on what was launched in it, whichever is first. So a gradient's kernel that runs on into the
optimizer's time counts there.

**Collectives.** Ours carry their bytes with them (`comm_compress::sent`); those of stock gloo and NCCL are computed
from the shapes that the profiler recorded: what a rank must send for its part (`raw`), and what it does send: the
same, but twice that for a reduce-scatter of gloo, which is an all-reduce. Their time is the communication above,
waiting for slower ranks included; so the bandwidth of a prefetched all-gather is that which the training thread felt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fsdp_lab.trace.reading.intervals import Interval
from fsdp_lab.trace.reading.labels import Class

OPS = ("reduce_scatter", "all_gather", "all_reduce", "all_to_all")


class Piece(NamedTuple):
    """Something of one class, on one thread or stream; ``op`` when it is known to be part of a collective."""

    start: int
    end: int
    kind: Class
    lane: str
    op: str | None = None


class Call(NamedTuple):
    """A collective, at a moment of the host's time. Bytes of this rank; None when the trace does not say."""

    op: str
    moment: int
    raw: int | None
    sent: int | None


class Step(NamedTuple):
    """One optimizer step: when the host was in it, and when (CUDA: the device) in which phase, in order."""

    host: Interval
    phases: list[tuple[str, Interval]]

    @property
    def whole(self) -> Interval:
        """From the beginning of the first phase to the end of the last."""
        return self.phases[0][1][0], self.phases[-1][1][1]


@dataclass(frozen=True)
class Activity:
    """All of one trace. ``device`` is cpu or cuda."""

    device: str
    steps: list[Step]
    pieces: list[Piece]
    calls: list[Call]
    posted: list[Interval] = field(default_factory=list)  # messages that were, for a part of this time, under way

    def of(self, kind: Class) -> list[Interval]:
        """When anything of ``kind`` went on; may overlap."""
        return [(piece.start, piece.end) for piece in self.pieces if piece.kind == kind]
