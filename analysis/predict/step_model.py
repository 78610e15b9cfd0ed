"""How long a training step takes: one rank's calling thread, and its link, followed through the step.

    thread   encode | compute ...... wait | decode | compute ...
    link             [ message ...........]                       one message after another, in the order posted

What is assumed, and holds for FSDP2 on CPU and gloo as `comm_compress.attach` sets it up:

- all ranks do the same at the same time, so one rank stands for all, but for ``meeting_s``: no two ranks compute
  for equally long, and at every reduce-scatter the earlier ones wait for the last;
- an all-gather is posted ``prefetch`` units ahead of its use (0: when it is used) and hides behind what is computed
  meanwhile; encoding and decoding hide behind nothing;
- a reduce-scatter hides behind nothing on gloo. On NCCL (``overlap_reduce``) backward goes on meanwhile and waits for
  all of them at its end;
- blocks are gathered in forward and again in backward, the root (embeddings, head) once;
- the optimizer's world-wide norm is one small all-reduce.

All sizes are bytes, all times seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

ITEM = 4  # bytes of a float32, in which the units are counted


@dataclass(frozen=True)
class Cost:
    """What one kind of collective costs beside the link's rate.

    ``alpha_s``: a call that carries nothing. ``cpu_s_per_byte``: the ranks' own work (copies, kernel) for a byte sent,
    which is all that counts when the link has no limit. ``efficiency``: the share of the link's rate at which payload
    arrives, at some message sizes, between which it is interpolated over the logarithm of the size. gloo's
    reduce-scatter sends everything twice, so its efficiency is below 0.5.
    """

    alpha_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    efficiency: Sequence[tuple[float, float]] = ((1.0, 1.0),)

    def share(self, sent: float) -> float:
        """The efficiency for a message of ``sent`` bytes."""
        points = sorted(self.efficiency)
        if sent <= points[0][0]:
            return points[0][1]
        for (low, at_low), (high, at_high) in itertools.pairwise(points):
            if sent <= high:
                return at_low + (at_high - at_low) * math.log(sent / low) / math.log(high / low)
        return points[-1][1]


@dataclass(frozen=True)
class Link:
    """A rank's sending side. ``rate``: bytes a second (infinity: no limit).

    ``bucket``: bytes that pass at once after a silence (a token-bucket shaper's burst; 0 for a real link).
    ``costs``: by kind of collective: exchange (our transport), all_gather, reduce_scatter (stock), all_reduce (small).
    ``busy``: the ranks compute on all cores, so that a prefetched message makes no headway while they do (gloo's
    threads get a core only when the calling thread waits).
    """

    rate: float
    costs: Mapping[str, Cost]
    bucket: float = 0.0
    busy: bool = False

    def seconds(self, kind: str, sent: float) -> float:
        """The time of one collective that nothing else shares the link with, and that hides behind nothing."""
        cost = self.costs[kind]
        return max(cost.alpha_s + cost.cpu_s_per_byte * sent, sent / (self.rate * cost.share(sent)))


@dataclass(frozen=True)
class Codec:
    """One direction of a method. ``bits``: sent per element. Times: of a call, and of a byte of the whole unit.

    ``kind``: which collective carries it. ``rounds``: further small collectives that a call takes. ``times_sent``: 2
    when the collective puts every byte on the wire twice (its efficiency has that in it already).
    """

    kind: str = "exchange"
    bits: float = 32.0
    encode_call_s: float = 0.0
    encode_s_per_byte: float = 0.0
    decode_call_s: float = 0.0
    decode_s_per_byte: float = 0.0
    rounds: float = 0.0
    times_sent: float = 1.0

    def encode_s(self, unit: Unit) -> float:
        """Time before the first byte leaves."""
        return self.encode_call_s + self.encode_s_per_byte * unit.elements * ITEM

    def decode_s(self, unit: Unit) -> float:
        """Time after the last byte has come."""
        return self.decode_call_s + self.decode_s_per_byte * unit.elements * ITEM

    def sent(self, unit: Unit, world: int) -> float:
        """Payload that one rank sends to the others."""
        return unit.elements * (world - 1) / world * self.bits / 8


@dataclass(frozen=True)
class Method:
    """The codecs that carry gradients and parameters."""

    gradients: Codec
    parameters: Codec


@dataclass(frozen=True)
class Unit:
    """An FSDP2 unit: its parameters, and its own forward and backward without any communication."""

    elements: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Model:
    """The units in the order of forward; ``root`` holds embeddings and head.

    ``update_s``: clipping and optimizer. ``meeting_s``: waiting for slower ranks, a reduce-scatter.
    """

    root: Unit
    blocks: Sequence[Unit]
    update_s: float = 0.0
    meeting_s: float = 0.0
    prefetch: int = 1
    overlap_reduce: bool = False

    def slowed(self, factor: float) -> Model:
        """The model when every rank gets ``1 / factor`` of the processor time it got."""

        def unit(u: Unit) -> Unit:
            return replace(u, forward_s=u.forward_s * factor, backward_s=u.backward_s * factor)

        blocks = [unit(block) for block in self.blocks]
        update_s, meeting_s = self.update_s * factor, self.meeting_s * factor
        return replace(self, root=unit(self.root), blocks=blocks, update_s=update_s, meeting_s=meeting_s)

    @property
    def compute_s(self) -> float:
        """The time of everything that is not communication."""
        return math.fsum(u.forward_s + u.backward_s for u in (self.root, *self.blocks)) + self.update_s


def step_seconds(model: Model, method: Method, link: Link, world: int) -> float:
    """The time of one optimizer step on ``world`` ranks."""
    return _Step(model, method, link, world).run()


def wire_bytes(model: Model, method: Method, world: int) -> float:
    """What one rank puts on the wire in a step, both directions together."""
    units, gathered = [model.root, *model.blocks], [model.root, *model.blocks, *model.blocks]
    gradients, parameters = method.gradients, method.parameters
    reduced = gradients.times_sent * math.fsum(gradients.sent(u, world) for u in units)
    return reduced + parameters.times_sent * math.fsum(parameters.sent(u, world) for u in gathered)


@dataclass
class _Step:
    """One step as it goes on: the calling thread's clock, and the moment until which the link is taken."""

    model: Model
    method: Method
    link: Link
    world: int
    now: float = 0.0
    taken_until: float = -math.inf  # a full bucket
    arriving: dict[int, float] = field(default_factory=dict)  # gathers under way: place in order -> when

    def run(self) -> float:
        model, blocks = self.model, list(self.model.blocks)
        self.gather(model.root)
        self.pass_over(blocks, [block.forward_s for block in blocks], head_s=0.0, reduce=False)
        self.now += model.root.forward_s
        self.pass_over(blocks[::-1], [b.backward_s for b in blocks[::-1]], model.root.backward_s, reduce=True)
        self.reduce(model.root)
        self.now = max(self.now, self.reduced_at)
        if self.world > 1:
            self.now = self.transfer("all_reduce", 8.0, self.now)
        return self.now + model.update_s

    reduced_at: float = 0.0

    def pass_over(self, blocks: Sequence[Unit], compute_s: Sequence[float], head_s: float, reduce: bool) -> None:
        """Go forward or backward through the blocks, after ``head_s``; gathers are posted ahead of it."""
        self.post(blocks[: self.model.prefetch], 0)
        self.compute(head_s)
        for place, block in enumerate(blocks):
            self.post(blocks[place : place + 1], place)
            self.now = max(self.now, self.arriving.pop(place)) + self.decode(self.method.parameters, block)
            ahead = place + self.model.prefetch
            self.post(blocks[ahead : ahead + 1] if self.model.prefetch else [], ahead)
            self.compute(compute_s[place])
            if reduce:
                self.reduce(block)

    def compute(self, seconds: float) -> None:
        """Compute: messages under way go on meanwhile, or stand still when no core is left for them."""
        if self.link.busy:
            under_way = {place: at for place, at in self.arriving.items() if at > self.now}
            self.arriving |= {place: at + seconds for place, at in under_way.items()}
            self.taken_until += seconds * (self.taken_until > self.now)
        self.now += seconds

    def post(self, units: Sequence[Unit], first: int) -> None:
        """Encode the units that are not yet under way and begin to send them."""
        for place, unit in enumerate(units, first):
            if place not in self.arriving:
                self.arriving[place] = self.send(self.method.parameters, unit)

    def gather(self, unit: Unit) -> None:
        self.now = self.send(self.method.parameters, unit) + self.decode(self.method.parameters, unit)

    def reduce(self, unit: Unit) -> None:
        if self.world > 1:
            self.now += self.model.meeting_s
        arrives = self.send(self.method.gradients, unit)
        if self.model.overlap_reduce:
            self.reduced_at = max(self.reduced_at, arrives) + self.decode(self.method.gradients, unit)
        else:
            self.now = arrives + self.decode(self.method.gradients, unit)

    def send(self, codec: Codec, unit: Unit) -> float:
        """Encode a unit now, and say when its last byte arrives."""
        if self.world == 1:
            return self.now
        self.now += codec.encode_s(unit)
        for _ in range(math.ceil(codec.rounds)):
            self.now = self.transfer("all_reduce", 0.0, self.now)
        return self.transfer(codec.kind, codec.sent(unit, self.world), self.now)

    def decode(self, codec: Codec, unit: Unit) -> float:
        return codec.decode_s(unit) if self.world > 1 else 0.0

    def transfer(self, kind: str, sent: float, start: float) -> float:
        """When a message posted at ``start`` has arrived; the ranks' own work or the link limits it."""
        cost, rate = self.link.costs[kind], self.link.rate
        self.taken_until = max(self.taken_until, start - self.link.bucket / rate) + sent / (rate * cost.share(sent))
        return max(start + cost.alpha_s + cost.cpu_s_per_byte * sent, self.taken_until)
