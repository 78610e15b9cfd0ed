"""Factors of each rank's own matrices: exact where theory says so, and small where gradients are made like that."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor

import comm_compress as cc
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded
from comm_compress.core.segments import Segment, flatten, segments_of, unflatten
from comm_compress.core.state import State
from comm_compress.drive import simulate
from tests.comm_compress.table import build, codec

PLAIN = {"lines": 0.0, "line_scales": False}
EXACT = {**PLAIN, "values": "identity", "rest": "identity"}
BF16 = 2.0**-8  # the rounding of the right factor tilts the space that the left one is fitted in


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def state_of(segments: tuple[Segment, ...], seed: int = 0) -> State:
    return State("unit", 0, 1, seed, segments)


def passes(method: Codec, rows: Tensor, state: State, steps: int = 4) -> tuple[Tensor, Encoded]:
    """What comes of ``rows`` after so many steps of the iteration."""
    for _ in range(steps):
        state.begin(torch.tensor(True))
        encoded = method.encode(rows, state)
    return method.decode(encoded), encoded


def begun() -> State:
    state = State()
    state.begin()
    return state


def codec_of(method: Any) -> Codec:
    return codec(method, {}) if isinstance(method, str) else codec(method["method"], {"step": method["step"]})


def matrix(values: Tensor) -> tuple[Tensor, State]:
    """One rank's row of one parameter, and its state."""
    return values.reshape(1, -1), state_of(segments_of([("weight", tuple(values.shape))], 1))


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("values", ["int8", {"method": "int8", "entropy": "rans"}])
def test_messages_read_together_are_read_as_one_by_one(values: Any) -> None:
    """Also those of unequal lengths."""
    rows = torch.cat([random(1, 60 * 40 + 40 * 90 + 7, seed=s) * (s + 1) for s in range(3)])
    rows[1, 50:] = 0
    state = state_of(segments_of([("tall", (60, 40)), ("wide", (40, 90)), ("bias", (7,))], 1))
    method = codec("lowrank", {"rank": 3, "lines": 0.05, "values": values})
    decoded, encoded = passes(method, rows, state, 2)
    assert encoded.lengths is not None
    assert (len(set(encoded.lengths)) == 1) == (values == "int8")
    alone = [method.decode(method.received(encoded.row(i).clone(), encoded.n)) for i in range(3)]
    torch.testing.assert_close(decoded, torch.cat(alone), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(method.sum_into(encoded, torch.empty(encoded.n)), decoded.sum(0))


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (50, 8, 5)])
@pytest.mark.parametrize("rank", [1, 3])
def test_a_matrix_of_that_rank_arrives_whole(shape: tuple[int, ...], rank: int) -> None:
    b = torch.Size(shape[1:]).numel()
    values = (random(shape[0], rank) @ random(rank, b, seed=1)).view(shape)
    row, state = matrix(values)
    assert relative(passes(codec("lowrank", {"rank": rank, **EXACT}), row, state, 1)[0], row) < 2 * BF16


def test_steps_of_the_iteration_find_the_best_approximation() -> None:
    """That of the singular values (Eckart and Young), which no other rank-r matrix surpasses."""
    left, _, right = torch.linalg.svd(random(80, 50), full_matrices=False)
    sizes = 0.8 ** torch.arange(50.0)
    values = left * sizes @ right
    best = float(sizes[4:].norm() / sizes.norm())
    row, state = matrix(values)
    method = codec("lowrank", {"rank": 4, **EXACT})
    first = relative(passes(method, row, state, 1)[0], row)
    last = relative(passes(method, row, state, 60)[0], row)
    assert best * 0.999 < last < best * 1.02 < first


@given(seed=st.integers(0, 1000), wide=st.booleans())
@settings(max_examples=20, deadline=None)
def test_it_is_a_projection(seed: int, wide: bool) -> None:
    """The error is orthogonal to what is sent, so nothing grows."""
    values = random(30, 90, seed=seed) if wide else random(90, 30, seed=seed)
    row, state = matrix(values)
    sent, _ = passes(codec("lowrank", {"rank": 3, **EXACT}), row, state, 2)
    assert abs(float((row - sent) @ sent.T)) < 1e-4 * float(row.square().sum())
    assert float(sent.norm()) < float(row.norm()) * (1 + 1e-5)


@pytest.mark.parametrize("wide", [False, True])
def test_few_large_lines_arrive_exactly_and_leave_the_factors_to_the_others(wide: bool) -> None:
    values = random(100, 1) @ random(1, 30, seed=1)
    values[[3, 50, 99]] = 40 * random(3, 30, seed=2)
    row, state = matrix(values.T.contiguous() if wide else values)
    sent, encoded = passes(codec("lowrank", {"rank": 1, **EXACT, "lines": 0.03}), row, state, 1)
    lines = sent.view(30, 100).T if wide else sent.view(100, 30)
    assert torch.equal(lines[[3, 50, 99]], values[[3, 50, 99]])
    assert relative(lines, values) < BF16
    assert encoded.byte_count(0).indices == 3 * 4


@pytest.mark.parametrize("world", [1, 2])
def test_only_lines_far_above_the_median_go_whole(world: int) -> None:
    """Three rows of one matrix, and none of another whose lines are alike; as many for each destination as there are
    in their mean."""
    values = random(100 * world, 30)
    values[[3, 50, 99]] *= 40
    rows = flatten([values, random(60 * world, 40)], world)
    state = state_of(segments_of([("embedding", (100 * world, 30)), ("alike", (60 * world, 40))], world))
    method = codec("lowrank", {"rank": 2, **EXACT, "lines": 0.2, "longer": 5})
    sent, encoded = passes(method, rows, state, 1)
    whole = round(3 / world)
    assert [encoded.byte_count(i).indices for i in range(world)] == [4 * whole] * world
    assert int((sent[0, :3000] == rows[0, :3000]).view(100, 30).all(1).sum()) == whole


@pytest.mark.parametrize(
    ("fill", "whole"),
    [pytest.param(0.0, 7, id="all other lines are zero"), pytest.param(math.nan, 0, id="no number is longer than NaN")],
)
def test_which_lines_are_longer_has_an_answer_for_every_median(fill: float, whole: int) -> None:
    values = torch.full((100, 30), fill)
    values[:7] = random(7, 30)
    encoded = passes(codec("lowrank", {"rank": 2, **EXACT, "lines": 0.2, "longer": 5}), *matrix(values), 1)[1]
    assert encoded.byte_count(0).indices == 4 * whole


def test_lines_are_never_more_than_their_share() -> None:
    values = random(100, 30) * torch.exp2(torch.arange(100.0) / 4).unsqueeze(1)
    encoded = passes(codec("lowrank", {"rank": 2, **EXACT, "lines": 0.2, "longer": 2}), *matrix(values), 1)[1]
    assert encoded.byte_count(0).indices == 4 * 20


@pytest.mark.parametrize("longer", [0, 2])
def test_by_misfit_lines_go_whole_that_the_factors_do_not_hold(longer: float) -> None:
    """Not the three longest, which are along the one direction that all lines have, but three that are across it."""
    values = random(100, 1).abs() @ random(1, 30, seed=1)
    values[[3, 50, 99]] *= 100
    across = torch.linalg.qr(torch.stack([values[0], *random(3, 30, seed=2)]).T).Q.T[1:]
    values[[7, 20, 80]] = 5 * values.norm(dim=1).median() * across
    config, sent = {"rank": 1, **EXACT, "lines": 0.03, "longer": longer}, dict[bool, torch.Tensor]()
    for on in (False, True):
        row, state = matrix(values)
        arrived, encoded = passes(codec("lowrank", {**config, "by_misfit": on}), row, state, 8)
        sent[on] = (arrived.view(100, 30) == values).all(1).nonzero().flatten()
        assert encoded.byte_count(0).indices == 4 * 3
    assert sent[False].tolist() == [3, 50, 99]
    assert sent[True].tolist() == [7, 20, 80]


def test_by_misfit_counts_lengths_while_there_are_no_factors() -> None:
    values = random(100, 30)
    values[[3, 50, 99]] *= 40
    for by_misfit in (False, True):
        method = codec("lowrank", {"rank": 2, **EXACT, "lines": 0.2, "longer": 5, "by_misfit": by_misfit})
        sent, _ = passes(method, *matrix(values), 1)
        assert (sent.view(100, 30) == values).all(1).nonzero().flatten().tolist() == [3, 50, 99]


@pytest.mark.parametrize("right", ["int8", {"method": "ecsq", "step": 0.15}, "int4"])
def test_rounding_the_right_factor_costs_its_own_relative_error(right: Any) -> None:
    """Beside what a rank leaves out, squared: the left factor is fitted to what arrives."""
    values = random(80, 3) @ random(3, 60, seed=1) + 0.2 * random(80, 60, seed=2)
    plain, rounded = (
        relative(passes(codec("lowrank", {"rank": 3, **EXACT, "right": r}), *matrix(values), 3)[0].view(80, 60), values)
        for r in ("identity", right)
    )
    basis = torch.linalg.qr(random(60, 3, seed=3)).Q.reshape(1, -1)
    rounding = relative(codec_of(right).decode(codec_of(right).encode(basis, begun())), basis)
    assert 0.3 * rounding**2 < rounded**2 - plain**2 < 2 * rounding**2


def test_right_factors_that_round_to_zeros_are_no_failure() -> None:
    """One column has all of its length in one element; beside it -1, 0 and 1 make zeros of the others, and the product
    that the left factors are fitted with has no inverse."""
    values = torch.zeros(64, 32)
    values[0, 0], values[1:, 1:] = 1e3, random(63, 31)
    method = codec("lowrank", {"rank": 4, **EXACT, "right": {"method": "int8", "num_bits": 2}})
    row, state = matrix(values)
    for _ in range(3):  # the zeros are what the next step begins with
        sent, _ = passes(method, row, state, 1)
        assert bool(torch.isfinite(sent).all())
        assert relative(sent.view(64, 32), values) < 0.1, "that column arrives"


@given(seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_scaled_lines_each_have_the_same_relative_error_whatever_their_size(seed: int) -> None:
    """Bit for bit, for powers of two: they leave the exponents' way only."""
    values = random(64, 20, seed=seed)
    powers = torch.exp2(torch.randint(-40, 40, (64, 1), generator=torch.Generator().manual_seed(seed)).float())
    method = codec("lowrank", {"rank": 3, "lines": 0.0})
    plain, _ = passes(method, *matrix(values))
    scaled, _ = passes(method, *matrix(values * powers))
    assert torch.equal(scaled.view(64, 20), plain.view(64, 20) * powers)


@pytest.mark.parametrize("values", ["int8", "onebit", "identity"])  # onebit makes something of the zeros of whole lines
@pytest.mark.parametrize("line_scales", [False, True])
@pytest.mark.parametrize("shape", [(60, 40), (40, 60)])
def test_what_is_left_is_what_was_not_sent(shape: tuple[int, int], line_scales: bool, values: str) -> None:
    """Without a second copy of the gradient; the odd columns are a vector that goes by ``rest``."""
    segments = segments_of([("bias", (7,)), ("weight", shape)], 1)
    method = codec("lowrank", {"rank": 2, "lines": 0.1, "line_scales": line_scales, "values": values})
    rows = random(1, segments[-1].stop)
    encoded = method.encode(rows, state_of(segments))
    left = method.subtract_contribution(rows.clone(), encoded)
    torch.testing.assert_close(left, rows - method.decode(encoded), rtol=0, atol=2e-6)


@pytest.mark.parametrize("lines", [0.0, 0.02])
@pytest.mark.parametrize("line_scales", [False, True])
def test_bits_are_those_of_the_formula(lines: float, line_scales: bool) -> None:
    a, b, rank = 1000, 50, 4
    config = {"rank": rank, "lines": lines, "line_scales": line_scales, "values": {"method": "int4", "block_size": 64}}
    shapes = [("weight", (a, b)), ("bias", (77,))]
    row = random(1, a * b + 77)
    _, encoded = passes(codec("lowrank", config), row, state_of(segments_of(shapes, 1)), 1)
    values = a * rank + round(lines * a) * b
    wanted = values / 2 + 4 * -(-values // 64) + 2 * b * rank + 4 * round(lines * a) + a * line_scales
    rest = 80 + 4  # int8 and one scale
    heads = 12 + 21
    assert encoded.lengths == (encoded.byte_count(0).total,)
    assert abs(encoded.byte_count(0).total - (wanted + rest + heads)) <= 8, "alignment"


def test_vectors_and_small_matrices_go_by_rest() -> None:
    shapes = [("norm", (40,)), ("weight", (64, 64)), ("small", (6, 6)), ("bias", (9,))]
    segments = segments_of(shapes, 1)
    row = random(1, segments[-1].stop)
    sent, _ = passes(codec("lowrank", {"rank": 2, "rest": "identity"}), row, state_of(segments))
    for part, original, (name, _) in zip(unflatten(sent, segments), unflatten(row, segments), shapes, strict=True):
        assert torch.equal(part, original) == (name != "weight"), name


@pytest.mark.parametrize("world", [1, 2, 3])
def test_each_destination_has_its_own_factors(world: int) -> None:
    """Matrices of rank 2 in each rank's rows, of more than 2 together; sharded with padding."""
    parts = [random(11, 2, seed=2 * r) @ random(2, 24, seed=2 * r + 1) for r in range(world)]
    whole = torch.cat(parts)[: 11 * world - (world - 1)]
    rows = flatten([whole], world)
    state = state_of(segments_of([("weight", tuple(whole.shape))], world))
    assert relative(passes(codec("lowrank", {"rank": 2, **EXACT}), rows, state, 1)[0], rows) < 2 * BF16


def test_the_gradient_of_a_softmax_takes_a_bit_where_int4_takes_four() -> None:
    """The embedding's gradient (p - y)^T H: p nearly the same everywhere, y in few rows, of very different sizes."""
    hidden = random(64, 32) + 2 * random(1, 32, seed=3)
    weight = (0.05 * random(4000, 32, seed=1)).requires_grad_()
    frequency = 3 * random(4000, seed=2)
    targets = torch.multinomial(frequency.softmax(0), 64, True, generator=torch.Generator().manual_seed(0))
    F.cross_entropy(hidden @ weight.T + frequency, targets).backward()
    assert weight.grad is not None
    row, state = matrix(weight.grad)
    config = {"rank": 4, "values": "int4"}
    sent, encoded = passes(codec("lowrank", config), row, state, 2)
    int4 = codec("int4", {})
    rival = int4.decode(int4.encode(row, State()))
    by_line = [(x - row).view(4000, 32).norm(dim=1) / row.view(4000, 32).norm(dim=1) for x in (sent, rival)]
    assert encoded.byte_count(0).total * 8 / row.numel() < 1.2
    assert float(by_line[0].median()) < 0.5 * float(by_line[1].median())
    assert relative(sent, row) < 1.5 * relative(rival, row)


def test_the_right_factors_are_kept_and_forgotten_with_a_void_step() -> None:
    row, state = matrix(random(60, 30))
    method = codec("lowrank", {"rank": 2, **EXACT})
    passes(method, row, state, 3)
    kept = state.state_dict()["right_factors"].clone()
    state.begin(torch.tensor(False))
    method.encode(torch.full_like(row, torch.nan), state)
    assert torch.equal(state.state_dict()["right_factors"], kept)
    resumed = state_of(state.segments)
    resumed.load_state_dict(state.state_dict())
    assert torch.equal(passes(method, row, resumed, 1)[0], passes(method, row, state, 1)[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("config", [{}, {"lines": 0.0}, {"line_scales": False}, EXACT])
def test_what_is_not_finite_is_seen(bad: float, config: dict[str, Any]) -> None:
    values = random(60, 30)
    values[7, 7] = bad
    row, state = matrix(values)
    assert not bool(torch.isfinite(passes(codec("lowrank", {"rank": 2, **config}), row, state, 1)[0]).all())


@pytest.mark.parametrize("exponent", [-30, 30])
def test_it_scales_with_the_gradient(exponent: int) -> None:
    row, state = matrix(random(60, 30))
    other = state_of(state.segments)
    method = codec("lowrank", {"rank": 2})
    assert torch.equal(passes(method, row * 2.0**exponent, other)[0], passes(method, row, state)[0] * 2.0**exponent)


def test_as_changes_of_parameters_replicas_stay_close() -> None:
    """A random walk whose steps are nearly of rank one: delta feeds back what the factors leave out."""
    shape, errors, moves = (120, 40), [], []
    method = build("delta", {"values": {"method": "lowrank", "rank": 2, "line_scales": False}})
    states = simulate.states(2)
    for state in states:
        state.segments = segments_of([("weight", (2 * shape[0], shape[1]))], 2)
    rows = [random(*shape, seed=rank).flatten() for rank in range(2)]
    for step in range(24):
        for state in states:
            state.begin()
        rounds = [method.all_gather(row, state) for row, state in zip(rows, states, strict=True)]
        outcome = simulate.lockstep(rounds)
        assert torch.equal(outcome.results[0], outcome.results[1])
        errors.append(float((outcome.results[0] - torch.stack(rows)).norm()))
        change = [random(shape[0], 1, seed=9 * step + r) @ random(1, shape[1], seed=9 * step + r + 3) for r in range(2)]
        moved = [c.flatten() + 0.05 * random(c.numel(), seed=step + r + 77) for r, c in enumerate(change)]
        moves.append(float(torch.stack(moved).norm()))
        rows = [row + m for row, m in zip(rows, moved, strict=True)]
    assert errors[0] == 0
    assert max(errors[1:]) < 0.35 * max(moves)
    assert max(errors[16:]) < 1.3 * max(errors[8:16]), "nothing accumulates"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"rank": 0}, "rank"),
        ({"lines": 0.6}, "lines"),
        ({"longer": -1}, "longer"),
        ({"longer": 5, "lines": 0}, "longer"),
        ({"longer": math.inf}, "longer"),
        ({"by_misfit": True, "lines": 0}, "by_misfit"),
        ({"right": "topk2"}, "right"),
        ({"right": "powersgd"}, "right"),
        ({"values": "topk2"}, "values"),
        ({"values": "powersgd"}, "values"),
        ({"rest": {"method": "dgc"}}, "rest"),
    ],
)
def test_refusals_name_the_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^lowrank: {key}"):
        cc.make("lowrank", config)


def test_it_needs_to_know_the_shapes() -> None:
    with pytest.raises(ValueError, match="which parameter lies where"):
        codec("lowrank", {}).encode(random(1, 100), State())


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_with_a_share_bits_do_not_grow_with_the_ranks_that_divide_a_matrix(ranks: int) -> None:
    """A width of 192 over ranks: 96, 24 and 6 rows each, for which a rank of 28 is worth it in the first alone."""
    rows, state = matrix(random(192 // ranks, 192))
    settings_ = {"rank": 28, "lines": 0.0, "values": "int4", "rest": "int8"}
    bits = {}
    for share in (1.0, 0.3):
        _, encoded = passes(codec("lowrank", settings_ | {"share": share}), rows, state, 1)
        bits[share] = 8 * encoded.byte_count(0).total / rows.numel()
    assert bits[0.3] < 4.5
    assert bits[1.0] == bits[0.3] if ranks == 2 else bits[1.0] > 8
