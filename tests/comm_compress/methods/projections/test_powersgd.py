"""PowerSGD against its closed form, torch's own hook, and what it declares to send."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from comm_compress.core.segments import flatten, segments_of, unflatten
from comm_compress.drive import simulate
from tests.comm_compress.methods.projections.samples import normal, ranks, relative, step, total
from tests.comm_compress.table import build
from tests.distributed import run_ranks

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
        outcome = step(compressor, [flatten(g, world) for g in gradients], ranks(world, segments))
        chunks = [-(-300 // world), -(-4 // world) * 4]
        left, right = 4 * 4 * (300 + 64), 4 * 4 * (200 + 64)
        expected = (world - 1) * (2 * -(-left // world) + 2 * -(-right // world) + 4 * sum(chunks))
        assert [sent.total for sent in outcome.sent] == [expected] * world


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
