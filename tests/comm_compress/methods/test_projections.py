"""PowerSGD, Sketched-SGD, GradiVeQ and `zero`: against their papers' statements, torch's hook and closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from comm_compress import kernels, make
from comm_compress.core.segments import Segment, flatten, segments_of, unflatten
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.kernels.cpu import sketch as sketch_cpu
from comm_compress.kernels.reference import sketch as sketch_reference
from comm_compress.methods.projections.gradiveq import GradiVeQ
from comm_compress.methods.projections.powersgd import PowerSGD
from comm_compress.wrappers.error_feedback import ErrorFeedback
from tests.comm_compress.integrations.test_fsdp import _nan_step
from tests.comm_compress.table import build
from tests.distributed import run_ranks

CPU = torch.device("cpu")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def step(compressor: Any, inputs: list[Tensor], states: list[State]) -> simulate.Outcome:
    """One more collective on virtual ranks, begun as the FSDP hook begins it; with the bytes."""
    for rows, state in zip(inputs, states, strict=True):
        state.begin(torch.isfinite(rows).all())
    return simulate.lockstep([compressor.reduce_scatter(x, s) for x, s in zip(inputs, states, strict=True)])


def ranks(world: int, segments: tuple[Segment, ...] = ()) -> list[State]:
    """States before their first collective."""
    return [State("unit", rank, world, 0, segments) for rank in range(world)]


def total(outcome: simulate.Outcome) -> Tensor:
    """All ranks' totals, ``[W, n]``."""
    return torch.stack([result.total for result in outcome.results])


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


# ---- zero -----------------------------------------------------------------------------------------------------


def test_zero_sends_one_byte_a_row_and_delivers_nothing() -> None:
    compressor, states = build("zero", {}), ranks(3)
    outcome = step(compressor, [normal(3, 1000, seed=r) for r in range(3)], states)
    assert torch.equal(total(outcome), torch.zeros(3, 1000))
    assert [sent.total for sent in outcome.sent] == [2, 2, 2]


def test_feedback_around_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is ever sent"):
        make("zero", {"error_feedback": True})


# ---- PowerSGD -------------------------------------------------------------------------------------------------

Shapes = list[tuple[str, tuple[int, ...]]]
SHAPES: Shapes = [("w", (37, 24)), ("bias", (37,)), ("conv", (10, 3, 4, 2)), ("thin", (2, 5)), ("square", (16, 16))]
EXACT = {"min_compression_rate": 0.1, "error_feedback": False}


def unit(world: int, shapes: Shapes = SHAPES) -> tuple[Any, list[Any]]:
    """Segments of a unit and each rank's full gradients."""
    gradients = [[normal(*shape, seed=10 * r + i) for i, (_, shape) in enumerate(shapes)] for r in range(world)]
    return segments_of(shapes, world), gradients


def mean_parameters(outcome: simulate.Outcome, segments: Any, world: int) -> list[Tensor]:
    return [t / world for t in unflatten(total(outcome), segments)]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_powersgd_is_exact_where_the_summed_gradient_has_that_rank(world: int, rank: int) -> None:
    """Also with padding (37 and 10 rows over 2, 3 and 5 ranks), for convolutions, vectors and thin matrices."""
    segments, gradients = unit(world)
    for r, parts in enumerate(gradients):
        for i in (0, 2, 3, 4):
            shape = parts[i].shape
            left = normal(shape[0], rank, seed=i)  # one column space for all ranks
            parts[i] = (left @ normal(rank, math.prod(shape[1:]), seed=r)).view(shape)
    states = ranks(world, segments)
    outcome = step(build("powersgd", {"rank": rank, **EXACT}), [flatten(g, world) for g in gradients], states)
    for i, mean in enumerate(mean_parameters(outcome, segments, world)):
        expected = torch.stack([parts[i] for parts in gradients]).mean(0)
        assert relative(mean, expected) < 1e-4, SHAPES[i]


@pytest.mark.parametrize("world", [1, 3])
def test_a_step_of_powersgd_is_the_closed_form(world: int) -> None:
    """P P^T M in numpy's float64, with P from the factors that the state holds; the second step starts from M^T P."""
    segments, gradients = unit(world)
    states = ranks(world, segments)
    compressor = build("powersgd", {"rank": 2, **EXACT})
    rows = [flatten(g, world) for g in gradients]
    matrices = [i for i, (_, shape) in enumerate(SHAPES) if len(shape) > 1]
    sums = [sum(parts[i].double().numpy().reshape(SHAPES[i][1][0], -1) for parts in gradients) for i in matrices]
    bases: list[np.ndarray] = []
    for _ in range(3):
        outcome = step(compressor, rows, states)
        if not bases:
            start = states[0].get("right_factors")
            assert start is not None
            sizes = [2 * m.shape[1] for m in sums]
            bases = [q.view(-1, 2).double().numpy() for q in start.split(sizes)]
        results = mean_parameters(outcome, segments, world)
        for place, (i, m) in enumerate(zip(matrices, sums, strict=True)):
            left = np.linalg.qr(m @ bases[place])[0]
            expected = left @ (left.T @ m) / world
            np.testing.assert_allclose(results[i].reshape(expected.shape), expected, atol=2e-5)
            bases[place] = m.T @ left


def test_warm_started_powersgd_finds_the_best_approximation() -> None:
    """Subspace iteration on a fixed gradient with a spectral gap converges to the truncated SVD (Eckart-Young);
    without a warm start it stays near the first step's error."""
    matrix = normal(60, 40)
    u, s, v = torch.linalg.svd(matrix)
    s = 0.7 ** torch.arange(40.0)
    matrix = u[:, :40] @ torch.diag(s) @ v
    best = float(s[3:].norm() / s.norm())
    segments = segments_of([("w", (60, 40))], 2)
    errors = {}
    for warm in (True, False):
        states = ranks(2, segments)
        compressor = build("powersgd", {"rank": 3, "warm_start": warm, **EXACT})
        rows = [flatten([matrix * share], 2) for share in (0.25, 0.75)]
        seen = [relative(unflatten(total(step(compressor, rows, states)), segments)[0], matrix) for _ in range(15)]
        errors[warm] = seen[-1]
        assert min(seen) > best * (1 - 1e-4)
    assert errors[True] < best * 1.005
    assert errors[False] > best * 1.05


def _torch_hook(gradients: list[list[Tensor]], start: Tensor, rank: int) -> list[Any]:
    """What torch's DDP hook makes of the same gradients from the same Q: a loss whose gradient they are."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    me, plain = dist.get_rank(), 2
    module = torch.nn.Linear(gradients[0][0].shape[1], gradients[0][0].shape[0], bias=False)
    model = torch.nn.parallel.DistributedDataParallel(module)
    state = powersgd.PowerSGDState(None, rank, start_powerSGD_iter=plain, min_compression_rate=0.1)
    model.register_comm_hook(state, powersgd.powerSGD_hook)
    seen = []
    for number in range(plain + len(gradients[me])):
        gradient = gradients[me][number - plain] if number >= plain else torch.zeros_like(module.weight)
        if number == plain:
            state.p_memory_dict[0] = torch.zeros(gradient.shape[0] * rank)
            state.q_memory_dict[0] = start.clone()
        model.zero_grad()
        # Linear's weight gradient for the inputs e_i and output gradients G_i is G
        model(torch.eye(gradient.shape[1])).backward(gradient.T.contiguous())
        if number >= plain:
            assert module.weight.grad is not None
            seen.append(module.weight.grad.numpy().copy())
    return seen


@pytest.mark.parametrize("rank", [1, 3])
def test_powersgd_gives_the_mean_gradients_of_torchs_hook(rank: int) -> None:
    """Four steps with feedback and warm start on two real ranks, from the same Q."""
    shape, world = (30, 20), 2
    gradients = [[normal(*shape, seed=10 * r + t) for t in range(4)] for r in range(world)]
    segments = segments_of([("weight", shape)], world)
    states = ranks(world, segments)
    compressor = build("powersgd", {"rank": rank, "min_compression_rate": 0.1})
    start = normal(shape[1] * rank, seed=99)
    for state in states:
        state.put("right_factors", start)
    theirs = run_ranks(world, _torch_hook, gradients, start, rank)
    for t in range(4):
        outcome = step(compressor, [flatten([gradients[r][t]], world) for r in range(world)], states)
        ours = mean_parameters(outcome, segments, world)[0]
        assert relative(ours, torch.from_numpy(theirs[0][t])) < 2e-5


def test_powersgd_sends_what_it_declares() -> None:
    shapes: Shapes = [("a", (300, 200)), ("bias", (300,)), ("b", (64, 64)), ("small", (4, 4))]
    for world in (1, 2, 3, 8):
        segments, gradients = unit(world, shapes)
        compressor = build("powersgd", {"error_feedback": False})
        assert isinstance(compressor, PowerSGD)
        outcome = step(compressor, [flatten(g, world) for g in gradients], ranks(world, segments))
        chunks = [-(-300 // world), -(-4 // world) * 4]
        left, right = 4 * 4 * (300 + 64), 4 * 4 * (200 + 64)
        expected = (world - 1) * (2 * -(-left // world) + 2 * -(-right // world) + 4 * sum(chunks))
        assert [sent.total for sent in outcome.sent] == [expected] * world
        assert compressor.traffic_of(segments, world) == expected


def test_a_matrix_goes_low_rank_only_where_that_saves_enough() -> None:
    """64 x 64 at rank 4: 4096 elements against 2 x 4 x 128 floats, 4 times fewer."""
    segments, gradients = unit(1, [("w", (64, 64))])
    for rate, exact in ((3.99, False), (4.0, False), (4.01, True)):
        states = ranks(1, segments)
        compressor = build("powersgd", {"min_compression_rate": rate, "error_feedback": False})
        outcome = step(compressor, [flatten(gradients[0], 1)], states)
        assert torch.equal(total(outcome)[0], gradients[0][0].flatten()) == exact


@pytest.mark.parametrize("place", [(0, 0), (1, 3), (2, 700)])
def test_powersgd_shows_a_nan_at_every_destination_and_forgets_it(place: tuple[int, int]) -> None:
    """Even in padding (row 2 of 37 rows over 3 ranks ends in zeros), and without a rollback: the ranks' factors stay
    equal, residuals finite, and the next steps' totals finite."""
    world = 3
    segments, gradients = unit(world)
    compressor = build("powersgd", {"rank": 2, "min_compression_rate": 0.1})
    states = ranks(world, segments)
    clean = [flatten(g, world) for g in gradients]
    for bad_step in (0, 2):
        for number in range(4):
            inputs = [rows.clone() for rows in clean]
            if number == bad_step:
                inputs[1][place[0], min(place[1], inputs[1].shape[1] - 1)] = math.inf
            seen = total(step(compressor, inputs, states))
            assert bool(torch.isfinite(seen).all()) == (number != bad_step)
            assert number != bad_step or not torch.isfinite(seen).all(1).any()
    first, *others = [state.state_dict()["right_factors"] for state in states]
    assert torch.isfinite(first).all()
    assert all(torch.equal(first, other) for other in others)


def test_a_zero_gradient_does_not_kill_the_warm_start() -> None:
    """M = 0 makes Q = 0; the next gradient must still get a full basis."""
    segments = segments_of([("w", (40, 30))], 1)
    states = ranks(1, segments)
    compressor = build("powersgd", {"rank": 2, **EXACT})
    matrix = normal(40, 2) @ normal(2, 30, seed=1)
    assert torch.equal(total(step(compressor, [torch.zeros(1, 1200)], states)), torch.zeros(1, 1200))
    errors = [relative(total(step(compressor, [matrix.view(1, -1)], states)), matrix.view(1, -1)) for _ in range(2)]
    assert errors[-1] < 1e-5


@settings(max_examples=20, deadline=None)
@given(exponent=st.integers(-37, 34), seed=st.integers(0, 100))
def test_powersgd_scales_with_the_gradient(exponent: int, seed: int) -> None:
    """No product of two gradients is formed: 1e-37 and 1e34 are projected as well as 1."""
    segments = segments_of([("w", (20, 12))], 1)
    matrix = normal(20, 2, seed=seed) @ normal(2, 12, seed=seed + 1)
    rows = (matrix * 10.0**exponent).view(1, -1)
    states = ranks(1, segments)
    compressor = build("powersgd", {"rank": 2, **EXACT})
    for _ in range(3):
        assert relative(total(step(compressor, [rows], states)).double(), rows.double()) < 1e-4


def test_powersgd_names_a_state_of_another_rank() -> None:
    segments, gradients = unit(1)
    states = ranks(1, segments)
    rows = [flatten(gradients[0], 1)]
    step(build("powersgd", {"rank": 2, **EXACT}), rows, states)
    with pytest.raises(ValueError, match="rank = 3"):
        step(build("powersgd", {"rank": 3, **EXACT}), rows, states)


# ---- count-sketch ---------------------------------------------------------------------------------------------

SKETCH = kernels.sketch.on(CPU)
KEYS = [(17, 4), (5, 2**32 - 1), (2**31, 9), (1, 1), (0, 0)]


def sketched(module: Any, rows: Tensor, keys: list[tuple[int, int]], columns: int) -> Tensor:
    out = torch.full((rows.shape[0], len(keys), columns), math.nan)
    module.count_sketch(rows, keys, out)
    return out


def estimated(module: Any, sketch: Tensor, keys: list[tuple[int, int]], n: int) -> Tensor:
    out = torch.full((n,), math.nan)
    module.estimate(sketch, keys, out)
    return out


@settings(max_examples=30, deadline=None)
@given(
    n=st.sampled_from([0, 1, 2, 7, 31, 32, 33, 1023, 1024, 1025, 5000]),
    rows=st.integers(0, 3),
    columns=st.sampled_from([32, 64, 1024, 4096]),
    num_keys=st.sampled_from([1, 3, 5]),
    seed=st.integers(0, 100),
    threads=st.integers(1, 3),
)
def test_sketch_kernels_give_the_references_bytes(
    n: int, rows: int, columns: int, num_keys: int, seed: int, threads: int
) -> None:
    x, keys = normal(rows, n, seed=seed) ** 3, KEYS[:num_keys]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        mine, theirs = (sketched(module, x, keys, columns) for module in (sketch_cpu, sketch_reference))
        assert mine.numpy().tobytes() == theirs.numpy().tobytes()
        for sketch in mine:
            ours, expected = (estimated(module, sketch, keys, n) for module in (sketch_cpu, sketch_reference))
            assert ours.numpy().tobytes() == expected.numpy().tobytes()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_a_sketch_and_change_nothing(threads: int) -> None:
    x = normal(2, 300_007)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sketch = sketched(sketch_cpu, x, KEYS, 3200)
        estimate = estimated(sketch_cpu, sketch[1], KEYS, 300_007)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(sketch, sketched(sketch_reference, x, KEYS, 3200))
    assert torch.equal(estimate, estimated(sketch_reference, sketch[1], KEYS, 300_007))


def test_the_count_sketch_is_the_textbooks() -> None:
    """One coordinate at a time: a unit vector lands in one column of each row with a sign, and is found again."""
    n, columns = 500, 64
    keys, x = KEYS[:3], normal(1, n)
    columns_of = torch.stack(
        [sketched(SKETCH, e.view(1, -1), keys, columns)[0] for e in torch.eye(n)]
    )  # [n, 3, columns]
    assert torch.equal(columns_of.abs().sum(-1), torch.ones(n, 3))
    torch.testing.assert_close(sketched(SKETCH, x, keys, columns)[0], torch.einsum("i,ijc->jc", x[0], columns_of))
    sketch = normal(3, columns, seed=1)
    expected = torch.einsum("jc,ijc->ij", sketch, columns_of).median(1).values
    torch.testing.assert_close(estimated(SKETCH, sketch, keys, n), expected)


def test_hashes_are_uniform_and_signs_are_fair_and_independent() -> None:
    """Chi-square of bucket counts, and of sign times bucket, each within five standard deviations of its mean.

    Coordinates of a block never meet, so their places vary less than independent ones: one of each block is counted.
    """
    n, columns = 3_200_000, 128
    places, signs = (t[5::32] for t in sketch_reference._places((3, 4), n, columns, torch.device("cpu")))
    other, other_signs = (t[5::32] for t in sketch_reference._places((3, 5), n, columns, torch.device("cpu")))
    count = places.numel()
    for cells, size in [(places, 128), (places * 2 + (signs > 0), 256), (places // 16 * 8 + other // 16, 64)]:
        counts = torch.bincount(cells.long(), minlength=size).double()
        chi = float(((counts - count / size) ** 2 / (count / size)).sum())
        assert abs(chi - (size - 1)) < 5 * math.sqrt(2 * (size - 1))
    assert abs(float(signs.mean())) < 5 / math.sqrt(count)
    assert abs(float((signs * other_signs).mean())) < 5 / math.sqrt(count)


@pytest.mark.parametrize("columns", [32, 256])
def test_two_coordinates_meet_once_in_as_many_hashes_as_there_are_columns(columns: int) -> None:
    """Neighbours, coordinates at the same place of their blocks, and others; 16,000 pairs of each in 40 functions.

    Within five standard deviations of 1 / columns and never in one block; signs that meet agree half of the time.
    """
    pairs, draws, offsets = 16_000, 40, (1, 5, 31, 32, 33, 64, 1000)
    first = torch.arange(pairs)
    met, agree = dict.fromkeys(offsets, 0), dict.fromkeys(offsets, 0.0)
    for draw in range(draws):
        places, signs = sketch_reference._places((draw, 9), pairs + 1000, columns, torch.device("cpu"))
        for offset in offsets:
            meet = places[first] == places[first + offset]
            assert not (meet & (first // 32 == (first + offset) // 32)).any()
            met[offset] += int(meet.sum())
            agree[offset] += float((signs[first] * signs[first + offset])[meet].sum())
    for offset in offsets:
        strangers = int((first // 32 != (first + offset) // 32).sum()) * draws
        # pairs of the same two blocks meet together, up to 32 at a time: as many times the variance
        assert abs(met[offset] - strangers / columns) <= 5 * math.sqrt(32 * strangers / columns)
        assert abs(agree[offset]) <= 5 * math.sqrt(met[offset] + 1)


@settings(max_examples=20, deadline=None)
@given(a=st.floats(-4, 4), b=st.floats(-4, 4), seed=st.integers(0, 100))
def test_sketches_are_linear(a: float, b: float, seed: int) -> None:
    x, y = normal(1, 3000, seed=seed), normal(1, 3000, seed=seed + 1)
    mixed = sketched(SKETCH, a * x + b * y, KEYS, 96)
    separate = a * sketched(SKETCH, x, KEYS, 96) + b * sketched(SKETCH, y, KEYS, 96)
    torch.testing.assert_close(mixed, separate, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("columns", [64, 416])
def test_estimates_err_as_the_theory_says(columns: int) -> None:
    """One row errs by Chebyshev more than t ||x|| / sqrt(C) with probability at most 1 / t^2: at t = 3 a ninth. A
    median of five errs only if three do: at most sum_{i>=3} binom(5, i) (1/9)^i (8/9)^(5-i) = 1.2 %. And each
    row's estimate is unbiased with variance at most ||x||^2 / C. Measured over 40 draws x 2000 coordinates."""
    n, draws = 2000, 40
    x = normal(n) ** 3
    singles, medians = [], []
    for draw in range(draws):
        keys = [(draw, j) for j in range(5)]
        sketch = sketched(SKETCH, x.view(1, -1), keys, columns)[0]
        medians.append(estimated(SKETCH, sketch, keys, n) - x)
        singles.append(estimated(SKETCH, sketch[:1], keys[:1], n) - x)
    bound = 3 * float(x.norm()) / math.sqrt(columns)
    single, median = torch.stack(singles).double(), torch.stack(medians)
    assert float((single.abs() > bound).double().mean()) <= 1 / 9
    assert float((median.abs() > bound).double().mean()) <= 0.012
    variance = float(x.double().norm() ** 2) / columns
    assert 0.7 * variance < float((single**2).mean()) < 1.3 * variance
    assert abs(float(single.mean())) < 5 * math.sqrt(variance / draws)  # coordinates of one draw are dependent


# ---- Sketched-SGD ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("keep", ["all", "k"])
def test_a_wide_sketch_gives_the_top_k_of_the_true_sum(world: int, keep: str) -> None:
    n, k = 600, 20
    inputs = [normal(world, n, seed=r) ** 3 for r in range(world)]
    config = {"columns": 200_000, "k": k, "oversample": 1.5, "keep": keep, "error_feedback": False}
    outcome = step(build("sketch", config), inputs, ranks(world))
    expected = torch.stack(inputs).sum(0)
    count = k if keep == "k" else 30
    for got, row in zip(total(outcome), expected, strict=True):
        largest = row.abs().topk(count).indices
        torch.testing.assert_close(got, torch.zeros(n).scatter(0, largest, row[largest]))


def test_heavy_hitters_of_the_sum_are_found_though_small_on_every_rank() -> None:
    """Eight ranks' noise cancels, their common signal does not: planted at 10 of 20000 coordinates, below each
    rank's 1 % largest, all of it is found at 6 % of the bytes. Local top-k of the same size sends noise."""
    world, n, planted = 8, 20_000, 10
    places = torch.randperm(n, generator=torch.Generator().manual_seed(3))[:planted]
    noise = [normal(world, n, seed=r) for r in range(world)]
    noise[-1] = -torch.stack(noise[:-1]).sum(0)  # it cancels altogether
    inputs = []
    for rows in noise:
        signal = torch.zeros(world, n)
        signal[:, places] = 2.0
        inputs.append(rows + signal)
    config = {"columns": 200, "k": planted, "error_feedback": False}
    outcome = step(build("sketch", config), inputs, ranks(world))
    truth = torch.stack(inputs).sum(0)
    torch.testing.assert_close(total(outcome)[:, places], truth[:, places])
    assert outcome.sent[0].total < 0.06 * 4 * (world - 1) * n
    local = build("topk", {"k": planted, "error_feedback": False})
    found = total(step(local, inputs, ranks(world)))
    assert relative(found[:, places], truth[:, places]) > 0.5


@pytest.mark.parametrize("keep", ["all", "k"])
def test_sketch_sends_a_sketch_packed_indices_and_exact_values(keep: str) -> None:
    """n = 1000: 10-bit positions."""
    world, n = 3, 1000
    config = {"sketch_rows": 3, "columns": 20, "k": 6, "oversample": 2, "keep": keep, "error_feedback": False}
    compressor = build("sketch", config)  # of 32 columns
    sent = step(compressor, [normal(world, n, seed=r) for r in range(world)], ranks(world)).sent[0]
    flags = 2 if keep == "k" else 0
    assert sent.values == 2 * (4 * 3 * 32 + 4 * 12)
    assert sent.indices == 2 * (15 + flags)
    assert sent.total == compressor.traffic(n, world)


def test_the_paper_drops_all_but_k_and_feedback_gets_them_back() -> None:
    world, n, k = 2, 500, 10
    inputs = [normal(world, n, seed=r) for r in range(world)]
    compressor = build("sketch", {"columns": 100, "k": k, "keep": "k"})
    assert isinstance(compressor, ErrorFeedback)
    states = ranks(world)
    outcome = step(compressor, inputs, states)
    for owner, result in enumerate(outcome.results):
        kept = result.total.nonzero().flatten()
        assert kept.numel() == k
        for rows, state in zip(inputs, states, strict=True):
            residual = compressor.residual(state)
            assert residual is not None
            assert torch.equal(residual[owner] == 0, torch.zeros(n, dtype=torch.bool).index_fill(0, kept, True))
            others = residual[owner] != 0
            assert torch.equal(residual[owner][others], rows[owner][others])


def test_sketch_with_feedback_delivers_everything_in_the_end() -> None:
    """A constant gradient: the mean of what was delivered tends to it."""
    compressor, states = build("sketch", {"columns": 20, "k": 5}), ranks(2)
    inputs = [normal(2, 100, seed=r) for r in range(2)]
    delivered, steps = torch.zeros(2, 100), 300
    for _ in range(steps):
        delivered += total(step(compressor, inputs, states))
    assert relative(delivered / steps, torch.stack(inputs).sum(0)) < 0.05


def test_the_next_step_draws_other_hash_functions() -> None:
    """Coordinates that hide each other in one step do not in the next: with a single column-starved sketch the
    candidates differ, and every rank still agrees on them."""
    compressor, states = (
        build("sketch", {"sketch_rows": 1, "columns": 10, "k": 5, "error_feedback": False}),
        ranks(2),
    )
    inputs = [normal(2, 400, seed=r) for r in range(2)]
    first, second = (total(step(compressor, inputs, states)) for _ in range(2))
    assert not torch.equal(first, second)


# ---- GradiVeQ -------------------------------------------------------------------------------------------------

SMALL = {"slice_size": 16, "dimensions": 3, "basis_warmup": 2, "refresh_every": 5}


def test_gradients_of_a_fixed_subspace_arrive_exactly_at_a_fraction_of_the_bytes() -> None:
    """Planted: slices of every destination in a 3-dimensional subspace of its own, and its own mean if centred."""
    world = 3
    for centre in (False, True):
        bases = normal(world, 3, 16)
        means = normal(world, 1, 16) * centre

        def gradient(seed: int, bases: Tensor = bases, means: Tensor = means) -> list[Tensor]:
            return [(normal(world, 10, 3, seed=10 * seed + r) @ bases + means).flatten(1) for r in range(world)]

        compressor, states = build("gradiveq", {**SMALL, "centre": centre}), ranks(world)
        for number in range(12):
            inputs = gradient(number)
            outcome = step(compressor, inputs, states)
            assert relative(total(outcome), torch.stack(inputs).sum(0)) < 1e-5, number
            compressed = outcome.sent[0].total == (world - 1) * 4 * 10 * 3
            assert compressed == (number >= 2 and number not in {6, 11})


def test_the_basis_is_the_best_one_for_the_samples() -> None:
    """The step after sampling with the sampled gradient again: its error is numpy's trailing singular values."""
    world, n = 2, 640
    inputs = [normal(world, n, seed=r) ** 3 for r in range(world)]
    for centre in (False, True):
        compressor, states = build("gradiveq", {**SMALL, "centre": centre}), ranks(world)
        for _ in range(2):
            step(compressor, inputs, states)
        seen = total(step(compressor, inputs, states)).double()
        for got, row in zip(seen, torch.stack(inputs).sum(0).double(), strict=True):
            slices = row.view(-1, 16).numpy()
            singular = np.linalg.svd(slices - centre * slices.mean(0), compute_uv=False)
            np.testing.assert_allclose(float((got - row).norm() ** 2), (singular[3:] ** 2).sum(), rtol=1e-4)


def test_codes_are_projections_and_their_sum_is_the_projection_of_the_sum() -> None:
    """Each rank's contribution is U U^T (x - mu / W) + mu / W of its own rows; applying it twice changes nothing."""
    world, n = 3, 320
    compressor, states = build("gradiveq", SMALL), ranks(world)
    inputs = [normal(world, n, seed=r) for r in range(world)]
    for _ in range(2):
        step(compressor, inputs, states)
    outcome = step(compressor, inputs, states)
    once = [compressor.contribution(result.sent) for result in outcome.results]
    basis = states[0].get("basis")
    assert basis is not None
    torch.testing.assert_close(basis.mT @ basis, torch.eye(3).expand(world, -1, -1), atol=1e-5, rtol=0)
    twice = [compressor.contribution(result.sent) for result in step(compressor, once, states).results]
    for a, b, rows in zip(once, twice, inputs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert float(a.norm()) <= float(rows.norm())


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5])
def test_all_ranks_keep_the_dimensions_that_the_neediest_needs(loss: float) -> None:
    world, spectra = 2, [0.5, 0.9]
    inputs = [torch.zeros(2, 1600) for _ in range(world)]
    for rank, decay in enumerate(spectra):  # rank r's own row has a spectrum of its own
        inputs[0][rank] = (normal(100, 16, seed=rank) * decay ** torch.arange(16.0)).flatten()
    compressor = build("gradiveq", {"slice_size": 16, "energy_loss": loss, "basis_warmup": 1, "refresh_every": 4})
    states = ranks(world)
    step(compressor, inputs, states)
    step(compressor, inputs, states)
    needed = []
    for row in inputs[0]:
        energy = np.linalg.svd(row.view(-1, 16).double().numpy(), compute_uv=False) ** 2
        needed.append(next(d for d in range(1, 17) if energy[d:].sum() <= loss * energy.sum() + 1e-12))
    for state in states:
        basis = state.get("basis")
        assert basis is not None
        assert basis.shape == (world, 16, max(needed))


ENERGY = {"dimensions": None, "energy_loss": 0.2}


@pytest.mark.parametrize("config", [{}, {"centre": True}, ENERGY, {"sample_steps": 2}])
def test_a_whole_cycle_sends_what_the_formula_says(config: dict[str, Any]) -> None:
    world, n = 3, 1000
    compressor, states = build("gradiveq", {**SMALL, **config}), ranks(world)
    assert isinstance(compressor, GradiVeQ)
    inputs = [normal(world, n, seed=r) for r in range(world)]
    sent = [step(compressor, inputs, states).sent[1].total for _ in range(2 + 2 * 5)]
    basis = states[0].get("basis")
    assert basis is not None
    dimensions = basis.shape[2]
    assert dimensions == 3 or config is ENERGY
    assert sent[2] == (world - 1) * 4 * math.ceil(n / 16) * dimensions
    assert sum(sent[2:7]) == sum(sent[7:12]) == compressor.cycle_bytes(n, world, dimensions)


def test_rows_too_short_to_learn_from_go_uncompressed() -> None:
    compressor, states = build("gradiveq", SMALL), ranks(2)
    inputs = [normal(2, 47, seed=r) for r in range(2)]  # two whole slices, three dimensions
    for _ in range(6):
        assert torch.equal(total(step(compressor, inputs, states)), torch.stack(inputs).sum(0))


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("bad_step", [1, 3, 6])
def test_a_nan_never_reaches_the_bases(samples: int, bad_step: int) -> None:
    """In a sampled, a compressed and a renewing step, on one rank, not rolled back: its destination sees it, all
    ranks go on in step, and later totals are finite."""
    world, n = 2, 320
    compressor, states = build("gradiveq", {**SMALL, "sample_steps": samples}), ranks(world)
    for number in range(14):
        inputs = [normal(world, n, seed=2 * number + r) for r in range(world)]
        if number == bad_step:
            inputs[1][:, 5] = math.nan  # as the FSDP hook marks every row
        seen = total(step(compressor, inputs, states))
        assert bool(torch.isfinite(seen).all()) == (number != bad_step)
    bases = [state.get("basis") for state in states]
    assert bases[0] is not None
    assert bases[1] is not None
    assert torch.equal(bases[0], bases[1])


def test_a_zero_gradient_stays_zero_unless_centred() -> None:
    """Padding and unused embeddings must not move; the mean of the paper's form would make them."""
    world, n = 2, 320
    for centre in (False, True):
        compressor, states = build("gradiveq", {**SMALL, "centre": centre}), ranks(world)
        for number in range(3):
            step(compressor, [normal(world, n, seed=number) + 1 for _ in range(world)], states)
        seen = total(step(compressor, [torch.zeros(world, n)] * world, states))
        assert torch.equal(seen, torch.zeros(world, n)) != centre


# ---- under FSDP2 ----------------------------------------------------------------------------------------------

UNDER_FSDP: list[tuple[str, dict[str, Any]]] = [
    ("zero", {}),
    ("powersgd", {"rank": 1, "min_compression_rate": 0.1}),
    ("sketch", {"k": 2, "keep": "k"}),
    ("gradiveq", {"slice_size": 2, "dimensions": 1, "basis_warmup": 1, "refresh_every": 2}),
    ("gradiveq", {"slice_size": 2, "dimensions": 1, "basis_warmup": 1, "refresh_every": 9}),
]


def _nan_steps() -> list[Any]:
    return [_nan_step(name, config) for name, config in UNDER_FSDP]


def test_a_nan_in_one_ranks_backward_is_seen_on_all_and_remembered_by_none() -> None:
    """In a second step: with warm factors, in a compressed step and in one that renews the bases."""
    for results in run_ranks(2, _nan_steps):
        for (finite, seen, _, untouched), row in zip(results, UNDER_FSDP, strict=True):
            assert not finite, row
            assert seen, row
            assert untouched, row


# ---- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config", "key"),
    [
        ("powersgd", {"rank": 0}, "rank"),
        ("powersgd", {"min_compression_rate": 0}, "min_compression_rate"),
        ("sketch", {"sketch_rows": 4}, "sketch_rows"),
        ("sketch", {"sketch_ratio": 0.0}, "sketch_ratio"),
        ("sketch", {"columns": 0}, "columns"),
        ("sketch", {"ratio": 1.5}, "ratio"),
        ("sketch", {"k": 0}, "k"),
        ("sketch", {"oversample": 0.5}, "oversample"),
        ("gradiveq", {"slice_size": 1}, "slice_size"),
        ("gradiveq", {"dimensions": 129}, "dimensions"),
        ("gradiveq", {"dimensions": 8, "energy_loss": 0.1}, "energy_loss"),
        ("gradiveq", {"energy_loss": 1.0}, "energy_loss"),
        ("gradiveq", {"refresh_every": 1}, "refresh_every"),
        ("gradiveq", {"sample_steps": 50}, "sample_steps"),
        ("gradiveq", {"basis_warmup": -1}, "basis_warmup"),
    ],
)
def test_settings_out_of_range_are_named(name: str, config: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: {key} = "):
        make(name, config)
