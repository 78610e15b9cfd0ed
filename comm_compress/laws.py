"""The laws that every method obeys, as functions; others know them as `comm_compress.conformance`.

Each takes what makes a method, plays ranks with it, and raises AssertionError with what was expected and what was seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from comm_compress.core import nonfinite
from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.rounds import Reduced
from comm_compress.core.segments import Segment, segments_of
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.wrappers.error_feedback import ErrorFeedback
from comm_compress.wrappers.replicas import ReplicasApart

Factory = Callable[[], Compressor]
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
WORLDS = (1, 2, 3)
SIZES = (1, 7, 255, 256, 257, 1000)
LARGE = 300_000  # more than kernels share out among threads, and than 16 bits can count
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def gradient(world: int, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Heavy-tailed rows ``[world, n]`` for each rank, the ranks' scales far apart."""
    generator = torch.Generator().manual_seed(1000 * world + n + 10**6 * seed)
    scales = 10.0 ** torch.randint(-3, 2, (world,), generator=generator).float()
    return [(torch.randn(world, n, generator=generator) ** 3 * scale).to(dtype) for scale in scales]


def segments(world: int, n: int) -> tuple[Segment, ...]:
    """Return a matrix and a vector that fill rows of ``n`` exactly."""
    columns = max(1, math.isqrt(n))
    height = n // columns
    shapes: list[tuple[str, tuple[int, ...]]] = [("layer.weight", (height * world, columns))] if height else []
    if rest := n - height * columns:
        shapes.append(("layer.bias", (rest * world,)))
    return segments_of(shapes, world)


def states(world: int, n: int) -> list[State]:
    """Fresh states of a unit whose rows have ``n`` elements, first collective begun."""
    return simulate.states(world, "unit", 0, segments(world, n))


def step(compressor: Compressor, inputs: list[Tensor], states: list[State], goes_on: bool = False) -> list[Reduced]:
    """Run one more collective, begun as the FSDP hook begins it; ``goes_on``: in the optimizer step of the last."""
    for rows, state in zip(inputs, states, strict=True):
        state.begin(torch.isfinite(rows).all(), goes_on=goes_on)
    return simulate.reduce_scatter(compressor, inputs, states)


def finite_in_finite_out(factory: Factory) -> None:
    """Totals are float32 ``[n]``, and finite for finite input of any dtype: constants, denormals, single outliers.

    Any three of number of ranks, size, dtype and kind of input meet in every combination; not all four, which would
    take three times as long.
    """
    tried = itertools.product(enumerate(WORLDS), enumerate(SIZES), enumerate(DTYPES), range(4))
    for (a, world), (b, n), (c, dtype), kind in tried:
        if (a + b + c + kind) % 3:
            continue
        rows = _extreme(kind, world, n, dtype)
        for result in simulate.reduce_scatter(factory(), [rows] * world, states(world, n)):
            assert result.total.shape == (n,)
            assert result.total.dtype == torch.float32
            assert torch.isfinite(result.total).all(), f"not finite for finite {dtype} rows, n = {n}"


def _pairwise(first: Sequence[A], second: Sequence[B], third: Sequence[C]) -> Iterator[tuple[A, B, C]]:
    """Return triples in which any values of two dimensions meet; not of all three, which would take twice as long.

    ``third`` is the shortest.
    """
    for (i, a), (j, b) in itertools.product(enumerate(first), enumerate(second)):
        yield a, b, third[(i + j) % len(third)]


def _extreme(kind: int, world: int, n: int, dtype: torch.dtype) -> Tensor:
    """Return rows ``[world, n]`` of one kind: heavy tails, a constant, a single outlier, or denormals."""
    if kind == 0:
        return gradient(world, n, 0, dtype)[0]
    if kind == 2:
        spike = torch.zeros(world, n, dtype=dtype)
        spike[:, n // 2] = 1000
        return spike
    tiny = 1e-7 if dtype == torch.float16 else 1e-39
    return torch.full((world, n), -0.1 if kind == 1 else tiny, dtype=dtype)


def bytes_are_as_declared(factory: Factory) -> None:
    """What travels is what `traffic` says, and what each encoded row's byte counts say."""
    for world, n, dtype in [*_pairwise(WORLDS, (0, *SIZES), DTYPES), (2, LARGE, torch.float32)]:
        compressor, inputs = factory(), gradient(world, n, 0, dtype)
        pairs = zip(inputs, states(world, n), strict=True)
        sent = simulate.lockstep([compressor.reduce_scatter(x, s) for x, s in pairs]).sent
        if (declared := compressor.traffic(n, world, dtype)) is not None:
            assert [s.total for s in sent] == [declared] * world, f"{sent} sent, {declared} declared, n = {n}"
        if isinstance(compressor, Codec):
            encoded = compressor.encode(inputs[0], states(world, n)[0])
            for r in range(world):
                assert encoded.row(r).numel() == encoded.byte_count(r).total


def zeros_stay_zero(factory: Factory) -> None:
    """Rows of zeros have a total of zeros, also rows without elements (n = 0)."""
    for world, n in itertools.product(WORLDS, (0, 1, 300)):
        rows = [torch.zeros(world, n)] * world
        for result in simulate.reduce_scatter(factory(), rows, states(world, n)):
            assert torch.equal(result.total, torch.zeros(n)), f"n = {n}, world {world}"


def what_is_not_finite_never_becomes_plausible(factory: Factory) -> None:
    """One NaN or infinity on one rank makes the total at its destination not finite."""
    for bad, n, world in _pairwise((math.nan, math.inf, -math.inf), SIZES, (1, 3)):
        inputs = gradient(world, n)
        inputs[-1][0, (2 * n) // 3] = bad
        results = simulate.reduce_scatter(factory(), inputs, states(world, n))
        assert not torch.isfinite(results[0].total).all(), f"{bad} became finite, n = {n}, world {world}"


def what_is_not_finite_reaches_every_rank(factory: Factory) -> None:
    """One NaN or infinity, in a single element of one rank's rows, makes the total of every rank not finite.

    The rows are marked as the hooks mark them before they ask for a collective (`comm_compress.core.nonfinite.mark`).
    """
    for bad, n, world in _pairwise((math.nan, math.inf, -math.inf), SIZES, (2, 3)):
        inputs = gradient(world, n)
        inputs[0][-1, (2 * n) // 3] = bad
        for rows in inputs:
            nonfinite.mark(rows)
        results = simulate.reduce_scatter(factory(), inputs, states(world, n))
        blind = [rank for rank, result in enumerate(results) if torch.isfinite(result.total).all()]
        assert not blind, f"ranks {blind} of {world} did not see rank 0's {bad}, n = {n}"


def nothing_but_the_input_decides(factory: Factory) -> None:
    """Same input and state, same result; the input is not written to, the global generator not touched."""
    world, n = 3, 500
    inputs = gradient(world, n)
    before, generator = [x.clone() for x in inputs], torch.get_rng_state()
    first = simulate.reduce_scatter(factory(), inputs, states(world, n))
    torch.randn(3)
    torch.set_rng_state(generator)
    second = simulate.reduce_scatter(factory(), inputs, states(world, n))
    assert all(torch.equal(a.total, b.total) for a, b in zip(first, second, strict=True)), "same input, other result"
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True)), "the input was written to"
    assert torch.equal(torch.get_rng_state(), generator), "the global generator was touched"


def totals_are_sums_of_contributions(factory: Factory) -> None:
    """Whether rows are summed before decoding or after it, every rank knows what it gave."""
    for world, n in itertools.product((1, 2, 4), (1, 400)):
        compressor, mine = factory(), states(world, n)
        for number in range(3):
            results = step(compressor, gradient(world, n, number), mine)
            contributions = [compressor.contribution(r.sent).double() for r in results]
            for rank, result in enumerate(results):
                expected = torch.stack([c[rank] for c in contributions]).sum(0)
                torch.testing.assert_close(
                    result.total.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max() + 1e-30)
                )


def feedback_loses_nothing(factory: Factory) -> None:
    """contribution + residual == input + decayed old residual, step after step, to the residual's rounding."""
    compressor, world, n = factory(), 2, 900
    assert isinstance(compressor, ErrorFeedback)
    config = compressor.config
    rounding = {"fp32": 2e-6, "bf16": 2**-8, "int8": 1 / 250}[config.dtype]
    mine, old = states(world, n), [torch.zeros(world, n)] * world
    for number in range(5):
        inputs = gradient(world, n, number)
        results = step(compressor, inputs, mine)
        for rank, result in enumerate(results):
            reset = config.reset_every and mine[rank].tick % config.reset_every == 0
            expected = inputs[rank] + (0 if reset else config.decay) * old[rank]
            residual = _residual(compressor, mine[rank])
            seen = compressor.contribution(result.sent).float() + residual
            # a rank that rounds sums for all may keep more than it gave
            largest = torch.maximum(expected.abs().max(), residual.abs().max())
            error = float((seen - expected).abs().max() / largest)
            assert error <= rounding, f"lost {error:.2e} of the largest element in step {number}"
        old = [_residual(compressor, state) for state in mine]


def _residual(compressor: ErrorFeedback, state: State) -> Tensor:
    residual = compressor.residual(state)
    assert residual is not None
    return residual.clone()


def state_survives_a_round_trip(factory: Factory) -> None:
    """Saved and loaded into fresh states, the next steps are the same bit for bit."""
    world, n = 2, 600
    compressor, mine = factory(), states(world, n)
    for number in range(3):
        step(compressor, gradient(world, n, number), mine)
    copies = states(world, n)
    for copy, state in zip(copies, mine, strict=True):
        copy.load_state_dict({k: v.clone() for k, v in state.state_dict().items()})
    resumed = factory()
    for number in (3, 4):
        a = step(compressor, gradient(world, n, number), mine)
        b = step(resumed, gradient(world, n, number), copies)
        assert all(torch.equal(x.total, y.total) for x, y in zip(a, b, strict=True)), "resumed steps differ"


def a_void_step_leaves_no_trace(factory: Factory) -> None:
    """After `State.rollback` all is as before, also of the first step, with a NaN, and of several collectives."""
    world, n = 2, 600
    compressor, mine = factory(), states(world, n)
    for state in mine:
        state.lasting = False  # as the hooks have it for gradients
    spoiled = [torch.full((world, n), math.nan)] * world
    for made in range(2):
        before = [{k: v.clone() for k, v in s.state_dict().items()} for s in mine]
        for void in ([gradient(world, n, 1)], [spoiled], [gradient(world, n, number) for number in (1, 2, 3)]):
            for number, micro_batch in enumerate(void):
                step(compressor, micro_batch, mine, goes_on=number > 0)
            for state in mine:
                state.rollback()
            for state, old in zip(mine, before, strict=True):
                new = state.state_dict()
                assert new.keys() == old.keys(), f"{new.keys() ^ old.keys()} came or went"
                assert all(torch.equal(new[k], old[k]) for k in old), "a void step left a trace"
        step(compressor, gradient(world, n, made), mine)


def unbiased_as_claimed(factory: Factory) -> None:
    """The mean error over 400 collectives vanishes along four directions.

    Along each the z value is compared with 5: a correct method fails once in 400,000 seeds, and the seed is fixed.
    """
    compressor, world, n, trials = factory(), 2, 256, 400
    inputs, mine = gradient(world, n), states(world, n)
    x = inputs[0].double()
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(1)).double() * 2 - 1
    directions = [d / d.norm() for d in (x, x.sign(), torch.ones_like(x), signs)]
    errors = []
    for _ in range(trials):
        sent = step(compressor, inputs, mine)[0].sent
        difference = compressor.contribution(sent).double() - x
        errors.append([float((difference * d).sum()) for d in directions])
    seen = torch.tensor(errors, dtype=torch.float64)
    spread = seen.std(0) / math.sqrt(trials)
    floor = 1e-6 * float(x.norm())  # float32 rounding
    z = seen.mean(0).abs() / (spread + floor)
    assert float(z.max()) < 5, f"biased: z values {z.tolist()}"


def parameters_arrive_alike(factory: Factory) -> None:
    """An all-gather brings every rank the same finite rows near the originals; the same again if nothing changed."""
    compressor = factory()
    for world, n, dtype in itertools.product(WORLDS, (0, 1, 257), DTYPES):
        shards = [rows[0] for rows in gradient(world, n, 0, dtype)]
        mine = states(world, n)
        first = simulate.all_gather(compressor, shards, mine)
        for state in mine:
            state.begin()
        again = simulate.all_gather(compressor, shards, mine)
        for gathered, repeated in zip(first, again, strict=True):
            assert gathered.shape == (world, n)
            assert torch.equal(gathered, first[0]), "ranks see different parameters"
            assert torch.equal(repeated, gathered), "a second gather of the same parameters differs from the first"
        for row, shard in zip(first[0].float(), shards, strict=True):
            assert torch.isfinite(row).all()
            error, size = float((row - shard.float()).norm()), float(shard.float().norm())
            assert error <= (0 if compressor.traits.lossless else 0.5) * size, f"relative error {error / size}"


def replicas_stay_replicas(factory: Factory) -> None:
    """On two ranks of tensor parallelism, what both hold becomes the same bit for bit, whatever else their rows hold.

    Also while one of them has a NaN in its own part, and nobody takes that step back.
    """
    world, layout = 2, _held_whole_and_in_parts(2)
    n, whole = layout[-1].stop, [s for s in layout if s.name.startswith("whole")]
    kept = torch.cat([torch.arange(s.start, s.stop) for s in whole])
    methods, all_states = [], []
    for tp in range(2):
        held = {s.name: "" if s in whole else f"tp={tp}" for s in layout}
        methods.append(ReplicasApart(factory(), held))
        all_states.append(simulate.states(world, "unit", 0, layout))
    for number in range(4):
        seen = []
        for tp, (method, mine) in enumerate(zip(methods, all_states, strict=True)):
            inputs = [10.0**tp * rows for rows in gradient(world, n, 10 + 2 * number + tp)]
            for rows, same in zip(inputs, gradient(world, kept.numel(), number), strict=True):
                rows[:, kept] = same
            if not method.traits.for_gradients:
                for state in mine:
                    state.begin()
                seen += [simulate.all_gather(method, [rows[0] for rows in inputs], mine)[0][:, kept].clone()]
                continue
            if tp == 1 and number == 1:
                inputs[0][:, layout[1].start] = math.nan
            for rows, state in zip(inputs, mine, strict=True):
                state.begin(method.mark(rows))
            results = simulate.reduce_scatter(method, inputs, mine)
            seen += [torch.stack([result.total for result in results])[:, kept]]
        assert torch.isfinite(seen[0]).all(), "the other rank's NaN came here"
        difference = float((seen[0] - seen[1]).abs().max())
        assert torch.equal(*seen), f"replicas differ by {difference} in step {number}"


def _held_whole_and_in_parts(world: int) -> tuple[Segment, ...]:
    shapes = [("whole.bias", (21,)), ("part.weight", (40, 16)), ("whole.weight", (33, 8)), ("part.bias", (40,))]
    return segments_of(shapes, world)


Law = Callable[[Factory], None]

GRADIENT_LAWS: list[Law] = [
    finite_in_finite_out,
    bytes_are_as_declared,
    zeros_stay_zero,
    what_is_not_finite_never_becomes_plausible,
    what_is_not_finite_reaches_every_rank,
    nothing_but_the_input_decides,
    state_survives_a_round_trip,
    a_void_step_leaves_no_trace,
]
LAWS: list[Law] = [
    *GRADIENT_LAWS,
    totals_are_sums_of_contributions,
    unbiased_as_claimed,
    feedback_loses_nothing,
    parameters_arrive_alike,
    replicas_stay_replicas,
]


def laws_for(compressor: Compressor) -> list[Law]:
    """Return the laws that concern ``compressor``, by what its traits say."""
    laws: list[Law] = [replicas_stay_replicas]
    if compressor.traits.for_gradients:
        laws += GRADIENT_LAWS
        laws += [totals_are_sums_of_contributions] if compressor.traits.additive else []
        laws += [unbiased_as_claimed] if compressor.traits.unbiased else []
    if isinstance(compressor, ErrorFeedback):
        laws.append(feedback_loses_nothing)
    if compressor.traits.for_parameters:
        laws.append(parameters_arrive_alike)
    return laws
