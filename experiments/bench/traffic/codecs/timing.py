"""How long one rank computes in a collective, part by part, with nobody else there and no network.

A compressor's collective is a generator of requests. Here one rank's generator is driven with the answers it would
get if all ranks had its input, and the clock runs while the generator does: from the rows to the first request it
encodes, from the last answer to the result it decodes. Before each part a plain copy of the unit is timed, so that
noise hits both alike and no part finds its input in a cache.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.rounds import AllReduce, ExchangeParts, Reduced, Request
from comm_compress.core.workspace import Workspace
from comm_compress.drive import simulate
from comm_compress.wrappers.error_feedback import ErrorFeedback
from experiments.bench.traffic.codecs.unit import Unit, timed

ENCODE, FEEDBACK, DECODE = "encode", "encode with feedback", "decode"
ROUNDS, ROUNDS_FEEDBACK = "all rounds", "all rounds with feedback"
WORLDS = (2, 8)  # the first also where one size is enough
WARM_UP = 3  # kernels are compiled, error feedback has both of its buffers
SLOW_S, FEW = 0.5, 3  # a peer that takes longer is measured only so often


def sum_of(world: int) -> str:
    """The name of the operation that decodes the rows of ``world`` ranks and adds them up."""
    return f"sum W={world}"


OPERATIONS = [ENCODE, FEEDBACK, ROUNDS, ROUNDS_FEEDBACK, *map(sum_of, WORLDS), DECODE]


class Sample(NamedTuple):
    """One operation, measured once.

    ``input_bytes`` are those of the float32 rows that were encoded or that are decoded; ``least_bytes`` what has to
    move through memory at least (None: it is not our code, or nobody asks)."""

    operation: str
    seconds: float
    copy_seconds: float
    input_bytes: int
    least_bytes: int | None


class Run(NamedTuple):
    """Something that can be called again and again. ``implementation`` is "" for ours, otherwise the peer's name."""

    implementation: str
    call: Callable[[], list[Sample]]


@dataclass(frozen=True)
class Timing:
    """The medians of one operation over ``samples``; ``q1`` and ``q3`` are quartiles of the seconds."""

    method: str
    config: dict[str, Any]
    implementation: str
    operation: str
    threads: int
    samples: int
    input_bytes: int
    least_bytes: int | None
    seconds: float
    q1: float
    q3: float
    copied_bytes: int
    copy_seconds: float

    @property
    def gb_s(self) -> float:
        """Input bytes a second, in 1e9."""
        return self.input_bytes / self.seconds / 1e9

    @property
    def memcpy_ratio(self) -> float:
        """Input bytes a second over those that a plain copy takes in."""
        return self.gb_s / (self.copied_bytes / self.copy_seconds / 1e9)

    @property
    def roofline(self) -> float | None:
        """The share of the time that a copy would need to move the least bytes (it reads and writes every byte)."""
        if self.least_bytes is None:
            return None
        return self.least_bytes / (2 * self.copied_bytes / self.copy_seconds) / self.seconds


class Leg(NamedTuple):
    """What a rank does between two requests, with the bytes of the answer it begins with and of the request it ends
    with."""

    seconds: float
    copy_seconds: float
    read: int
    written: int


def drive(rounds: Generator[Request, Any, Any], world: int, output: Tensor, unit: Unit) -> list[Leg]:
    """Run rank 0's generator to its end; what it returns goes to ``output`` if it is not there already."""

    def resume(answer: Any) -> Request | None:
        try:
            return rounds.send(answer)
        except StopIteration as stop:
            result = stop.value.total if isinstance(stop.value, Reduced) else stop.value
            if result.data_ptr() != output.data_ptr():
                output.view_as(result).copy_(result)
            return None

    legs: list[Leg] = []
    answer, read = None, 0
    while True:
        copy_seconds = unit.copy_seconds()
        request, seconds = timed(unit.device, lambda answer=answer: resume(answer))  # type: ignore[misc]
        legs.append(Leg(seconds, copy_seconds, read, payload(request)))
        if request is None:
            return legs
        answer = simulate.echo(request, 0, world)
        read = answer.nbytes if isinstance(answer, Tensor) else _row_bytes(answer)


def payload(request: Request | None) -> int:
    """The bytes that a request hands over, this rank's own part included."""
    if request is None:
        return 0
    if isinstance(request, ExchangeParts):
        return sum(map(_row_bytes, request.messages))
    return request.tensor.nbytes if isinstance(request, AllReduce) else _row_bytes(request.message)


def _row_bytes(encoded: Any) -> int:
    return sum(encoded.row(r).numel() for r in range(encoded.num_rows))


def runs(plain: Compressor, with_feedback: Compressor | None, unit: Unit, worlds: Sequence[int] = WORLDS) -> list[Run]:
    """One method's collectives, as the hooks of FSDP2 run them: a state, a workspace, an output for each.

    ``with_feedback``: None where error feedback makes no sense. ``worlds``: numbers of ranks; all is measured with the
    first, sums with the others too.
    """
    result = []
    if plain.traits.for_gradients:
        result += [_reduce_scatter(plain, world, unit) for world in worlds]
        if with_feedback is not None:
            result.append(_reduce_scatter(with_feedback, WORLDS[0], unit))
    if plain.traits.for_parameters:
        result.append(_all_gather(plain, unit))
    return [Run("", call) for call in result]


def _reduce_scatter(compressor: Compressor, world: int, unit: Unit) -> Callable[[], list[Sample]]:
    rows, state, workspace = unit.rows(world), unit.state(world), Workspace()
    output = torch.zeros(rows.shape[1], device=unit.device)
    finite = torch.ones((), dtype=torch.bool, device=unit.device)

    def call() -> list[Sample]:
        state.begin(finite, output, workspace)
        legs = drive(compressor.reduce_scatter(rows, state), world, output, unit)
        if isinstance(compressor, ErrorFeedback):
            return [_feedback(legs, compressor.inner, rows, output)]
        samples = [_sample(sum_of(world), legs[-1:], rows.nbytes, output.nbytes)]
        if world == WORLDS[0]:
            samples.append(_sample(ENCODE, legs[:1], rows.nbytes, rows.nbytes))
            if not _encodes_once(compressor, legs):
                samples.append(_sample(ROUNDS, legs, rows.nbytes, rows.nbytes + output.nbytes))
        return samples

    return call


def _feedback(legs: list[Leg], inner: Compressor, rows: Tensor, output: Tensor) -> Sample:
    """The sample of sending with error feedback, whose residual is read and written.

    A codec does that before anything is sent, other methods at the end of all rounds."""
    moved = rows.nbytes + 2 * 4 * rows.numel()
    if _encodes_once(inner, legs):
        return _sample(FEEDBACK, legs[:1], rows.nbytes, moved)
    return _sample(ROUNDS_FEEDBACK, legs, rows.nbytes, moved + output.nbytes)


def _encodes_once(compressor: Compressor, legs: list[Leg]) -> bool:
    return isinstance(compressor, Codec) and len(legs) == 2


def _all_gather(compressor: Compressor, unit: Unit) -> Callable[[], list[Sample]]:
    """All-gathers of parameters that move a little between two of them, there and back: delta has something to send."""
    world, workspace = WORLDS[0], Workspace()
    state, (row, moved) = unit.state(world), _parameters(compressor, unit)
    output = torch.zeros(world, row.numel(), dtype=row.dtype, device=unit.device)
    parameters = itertools.cycle([row, moved])

    def call() -> list[Sample]:
        state.begin(output=output, workspace=workspace)
        legs = drive(compressor.all_gather(next(parameters), state), world, output, unit)
        samples = [_sample(DECODE, legs[-1:], output.nbytes, output.nbytes)]
        if not compressor.traits.for_gradients:
            samples.append(_sample(ENCODE, legs[:1], row.nbytes, row.nbytes))
        return samples

    return call


def _parameters(compressor: Compressor, unit: Unit) -> tuple[Tensor, Tensor]:
    """One rank's parameters before and after a step, ``[n]``.

    Changes without loss are for bf16 weights, which a step moves by a few units in the last place or not at all:
    N(0, 0.02), and updates of rms 3e-5. (float32 masters move by thousands of such units: raw bits.)
    """
    row = unit.rows(WORLDS[0])[0]
    if isinstance(compressor, Codec):
        return row, row
    if not compressor.traits.lossless:
        return row, row * 1.001
    generator = torch.Generator().manual_seed(1)
    weights, update = (scale * torch.randn(row.numel(), generator=generator) for scale in (0.02, 3e-5))
    before, after = (x.to(unit.device, torch.bfloat16) for x in (weights, weights + update))
    return before, after


def _sample(operation: str, legs: Sequence[Leg], input_bytes: int, besides: int) -> Sample:
    """The sample of a leg: answers are read and messages written; ``besides`` is what else must move."""
    least = besides + sum(leg.read + leg.written for leg in legs)
    copy_seconds = statistics.mean(leg.copy_seconds for leg in legs)
    return Sample(operation, sum(leg.seconds for leg in legs), copy_seconds, input_bytes, least)


def measure(method: str, config: dict[str, Any], competitors: Sequence[Run], unit: Unit, repeats: int) -> list[Timing]:
    """Warm all of them up, then measure them in turn."""
    slow = {i for i, run in enumerate(competitors) if _warm_up(run)}
    samples: dict[tuple[str, str], list[Sample]] = {}
    for number in range(repeats):
        for i, run in enumerate(competitors):
            if i not in slow or number < FEW:
                for sample in run.call():
                    samples.setdefault((run.implementation, sample.operation), []).append(sample)
    return [
        _row(method, config, implementation, of_run, unit.nbytes) for (implementation, _), of_run in samples.items()
    ]


def _warm_up(run: Run) -> bool:
    """Warm one of them up, and say whether it is a slow peer."""
    for _ in range(WARM_UP):
        seconds = math.fsum(sample.seconds for sample in run.call())
        if run.implementation and seconds > SLOW_S:
            return True
    return False


def _row(method: str, config: dict[str, Any], implementation: str, samples: list[Sample], copied_bytes: int) -> Timing:
    seconds = [s.seconds for s in samples]
    q1, median, q3 = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    copy_seconds = statistics.median(s.copy_seconds for s in samples)
    last, threads = samples[-1], torch.get_num_threads()
    return Timing(
        method, config, implementation, last.operation, threads, len(samples), last.input_bytes, last.least_bytes,
        median, q1, q3, copied_bytes, copy_seconds,
    )  # fmt: skip
