"""Every collective that our transport ran: bytes by kind, and the time of each part."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args

import torch

from comm_compress.core.encoded import ByteCount
from comm_compress.core.tracing import Sent, mark_sent

Op = Literal["reduce_scatter", "all_gather", "all_reduce", "activations", "activation_gradients", "outer", "optimizer"]
# what each takes without compression; activations, and their gradients, are moved by the first three of the others
ROUNDS: dict[Op, int] = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2, "outer": 2, "optimizer": 1}
Part = Literal["encode", "wire", "decode"]
PARTS: tuple[Part, ...] = get_args(Part)
Moment = float | torch.cuda.Event


class Span(NamedTuple):
    """The time that one part of a collective took; ``round``: the round it belongs to, from 1 (wire only)."""

    part: Part
    start: Moment
    end: Moment
    round: int


@dataclass
class Totals:
    """What all collectives of this rank sent and took, summed up.

    Bytes are what this rank sends to other ranks, payload only (no TCP/IP headers). ``elements`` is how
    many it would have sent uncompressed: times 4 the float32 baseline, times 2 the bf16 one.
    ``raw_bytes`` uses the dtype FSDP2 handed over. Milliseconds of codec and wire are those of the calling
    thread (CPU; waiting for a slower peer counts as wire) or stream (CUDA). ``messages``: how many carried the bytes
    on gloo, which adds its own header to each (`rounds.messages_by`). So on a CPU the wire time of a
    prefetched all-gather is what was not hidden behind computation: posting its messages, and waiting at the end.

    ``extra_collectives`` are rounds beyond those that the uncompressed operation takes (`ROUNDS`): a scale agreed
    first, a sketch before its exact values. ``extra_ms`` is their share of ``wire_ms``, where the rounds with the
    most bytes are taken for the operation's own. The lengths that precede ragged rows belong to their round.

    ``uncounted``: operations asked for that are left to stock collectives. What these send is in none of the numbers:
    zeros do not mean that nothing was sent.
    """

    calls: int = 0
    elements: int = 0
    raw_bytes: int = 0
    value_bytes: int = 0
    index_bytes: int = 0
    metadata_bytes: int = 0
    messages: float = 0.0
    extra_collectives: int = 0
    encode_ms: float = 0.0
    wire_ms: float = 0.0
    decode_ms: float = 0.0
    extra_ms: float = 0.0
    nonfinite_inputs: int = 0
    uncounted: tuple[Op, ...] = field(default=(), compare=False)

    @property
    def sent_bytes(self) -> int:
        """The bytes of all kinds that this rank sent to other ranks."""
        return self.value_bytes + self.index_bytes + self.metadata_bytes

    def __add__(self, other: Totals) -> Totals:
        sums = {name: getattr(self, name) + getattr(other, name) for name in NUMBERS}
        return Totals(**sums, uncounted=self._neither_counted(other))

    def __sub__(self, other: Totals) -> Totals:
        differences = {name: getattr(self, name) - getattr(other, name) for name in NUMBERS}
        return Totals(**differences, uncounted=self._neither_counted(other))

    def _neither_counted(self, other: Totals) -> tuple[Op, ...]:
        return tuple(sorted({*self.uncounted, *other.uncounted}))


NUMBERS = tuple(f.name for f in fields(Totals) if f.name != "uncounted")


@dataclass
class Collective:
    """One running collective; the transport charges bytes and time to it."""

    device: torch.device
    bytes: ByteCount = field(default_factory=ByteCount)
    rounds: int = 0
    messages: float = 0.0
    spans: list[Span] = field(default_factory=list)
    round_bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._on_cuda = self.device.type == "cuda"  # asked a dozen times a collective

    def charge(self, byte_count: ByteCount, messages: float = 0.0) -> None:
        """Bytes that this rank put on the wire in one round, and in how many messages."""
        self.bytes += byte_count
        self.messages += messages
        self.rounds += 1
        self.round_bytes.append(byte_count.total)

    def spent(self, part: Part, start: Moment) -> None:
        """Charge the time from ``start`` until now to ``part``."""
        self.spans.append(Span(part, start, self.now(), self.rounds if part == "wire" else 0))

    def extra_rounds(self, own: int) -> set[int]:
        """The rounds, counted from 1, beyond the operation's ``own`` that carry the most bytes."""
        if self.rounds <= own:
            return set()
        by_size = sorted(range(len(self.round_bytes)), key=lambda i: -self.round_bytes[i])
        return {i + 1 for i in by_size[own:]}

    def now(self) -> Moment:
        """A moment on the calling thread's clock (CPU) or the current stream's (CUDA)."""
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event


class Ledger:
    """Totals by (operation, unit). Adding is cheap; CUDA events are read only when totals are asked for.

    ``uncounted``: the operations that are left to stock collectives, which nobody counts here.
    """

    def __init__(self, uncounted: tuple[Op, ...] = ()) -> None:
        self.uncounted = uncounted
        self._totals: dict[tuple[Op, str], Totals] = {}
        self._unread: list[tuple[Totals, list[Span], set[int]]] = []
        self._nonfinite: list[tuple[Totals, torch.Tensor]] = []

    def add(
        self,
        op: Op,
        unit: str,
        collective: Collective,
        elements: int,
        itemsize: int,
        finite: torch.Tensor | None,
        own_rounds: int | None = None,
    ) -> None:
        """Enter one finished collective; ``elements`` of ``itemsize`` bytes had to reach other ranks.

        ``own_rounds``: what it takes without compression, where the operation alone does not say so (`ROUNDS`).
        """
        own_rounds = ROUNDS[op] if own_rounds is None else own_rounds
        mark_sent(Sent(op, unit, elements * itemsize, collective.bytes.total))
        totals = self._totals.setdefault((op, unit), Totals())
        totals.calls += 1
        totals.elements += elements
        totals.raw_bytes += elements * itemsize
        totals.value_bytes += collective.bytes.values
        totals.index_bytes += collective.bytes.indices
        totals.metadata_bytes += collective.bytes.metadata
        totals.messages += collective.messages
        totals.extra_collectives += max(0, collective.rounds - own_rounds)
        if finite is not None:
            self._nonfinite.append((totals, finite))
        self._unread.append((totals, collective.spans, collective.extra_rounds(own_rounds)))
        if collective.device.type != "cuda" or len(self._unread) > 4096:
            self._read()

    def totals(self, op: Op | None = None, unit: str | None = None) -> Totals:
        """Sums so far, of one operation and one unit or of all; they name what is not counted (`Totals.uncounted`)."""
        self._read()
        chosen = (t for (o, u), t in self._totals.items() if op in (None, o) and unit in (None, u))
        return sum(chosen, Totals(uncounted=tuple(o for o in self.uncounted if op in (None, o))))

    def summary(self) -> str:
        """Say in a line for each operation how often it ran, and what it sent in MB; or that nobody counts it."""
        lines = []
        for op in sorted({*self.uncounted, *(o for o, _ in self._totals)}):
            totals = self.totals(op)
            share = f" ({totals.sent_bytes / totals.raw_bytes:.1%} of uncompressed)" if totals.raw_bytes else ""
            counted = f"{totals.calls} calls, {totals.sent_bytes / 1e6:.3f} MB sent{share}"
            lines.append(f"{op}: {'stock collectives, not counted' if op in self.uncounted else counted}")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return everything counted so far, as plain values by "operation/unit"."""
        self._read()
        return {
            f"{op}/{unit}": {name: getattr(totals, name) for name in NUMBERS}
            for (op, unit), totals in self._totals.items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Count on from what `state_dict` gave. ValueError, with nothing changed, for what it cannot have given."""
        loaded = dict(_entry(key, totals) for key, totals in state.items())
        self._read()
        self._totals = loaded

    def _read(self) -> None:
        for totals, spans, extra in self._unread:
            for part, start, end, number in spans:
                milliseconds = _milliseconds(start, end)
                if part == "encode":
                    totals.encode_ms += milliseconds
                elif part == "decode":
                    totals.decode_ms += milliseconds
                else:
                    totals.wire_ms += milliseconds
                if number in extra:
                    totals.extra_ms += milliseconds
        if self._nonfinite:
            counted, flags = zip(*self._nonfinite, strict=True)
            # one transfer from a GPU for all of them
            seen = torch.stack(flags).tolist() if flags[0].is_cuda else [bool(flag) for flag in flags]
            for totals, finite in zip(counted, seen, strict=True):
                totals.nonfinite_inputs += not finite
        self._unread.clear()
        self._nonfinite.clear()


def _entry(key: str, totals: Mapping[str, Any]) -> tuple[tuple[Op, str], Totals]:
    """Read one entry of a ledger's state. ValueError when it is none."""
    name, _, unit = key.partition("/")
    (op,) = [known for known in get_args(Op) if known == name] or [None]
    if op is None or not unit:
        raise ValueError(f"not a ledger's state: {key!r} is not OPERATION/UNIT, with one of {', '.join(get_args(Op))}")
    if not isinstance(totals, Mapping) or totals.keys() != {*NUMBERS}:
        odd = sorted({*totals} ^ {*NUMBERS}, key=str) if isinstance(totals, Mapping) else [totals]
        raise ValueError(f"not a ledger's state: {key!r} has, or lacks, {', '.join(map(str, odd))}")
    for field_name, value in totals.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"not a ledger's state: {key!r} says {field_name} = {value!r}, which is no count")
    return (op, unit), Totals(**totals)


def _milliseconds(start: Moment, end: Moment) -> float:
    if isinstance(start, float):
        assert isinstance(end, float)
        return (end - start) * 1e3
    assert isinstance(end, torch.cuda.Event)
    end.synchronize()
    return float(start.elapsed_time(end))
