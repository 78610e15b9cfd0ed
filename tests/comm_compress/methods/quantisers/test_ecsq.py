"""Scales of rows and columns, and as few bits as theory allows for the error that is left."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import comm_compress as cc
from comm_compress import kernels
from comm_compress.core.encoded import Encoded
from comm_compress.core.segments import Segment, segments_of
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.kernels import Matrices, Quantiser, Residual, Shape
from comm_compress.kernels.quantisers.matrix_scales import (
    cpu as matrix_scales_cpu,
    reference as matrix_scales_reference,
)
from comm_compress.kernels.tools.scratch import fresh
from tests.comm_compress.table import build, codec

CPU = torch.device("cpu")
ONCE = {"error_feedback": False}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def begun(*segments: Segment) -> State:
    state = State("unit", 0, 1, 0, tuple(segments))
    state.begin(torch.tensor(True))
    return state


def sent(values: Tensor, config: dict[str, Any]) -> tuple[Tensor, Encoded]:
    """What arrives of one parameter of one rank, and the message."""
    method = codec("ecsq", config)
    state = begun(*segments_of([("weight", tuple(values.shape))], 1))
    encoded = method.encode(values.reshape(1, -1), state)
    return method.decode(encoded).view_as(values), encoded


def bits(encoded: Encoded) -> float:
    return 8 * encoded.byte_count(0).total / encoded.n


@settings(max_examples=40, deadline=None)
@given(
    a=st.integers(1, 150),
    b=st.integers(1, 70),
    spread=st.sampled_from([0.0, 1.0, 12.0]),
    dead_zone=st.sampled_from([0.5, 0.6, 0.9]),
    empty=st.booleans(),
    bad=st.none() | st.tuples(st.integers(0, 1), st.sampled_from([math.inf, math.nan])),
    seed=st.integers(0, 1000),
)
def test_kernels_agree(
    a: int, b: int, spread: float, dead_zone: float, empty: bool, bad: tuple[int, float] | None, seed: int
) -> None:
    """Mean squares but for the order of sums; of equal scales the same codes and the same losses, bit for bit."""
    shapes = (
        Shape(a, b, columns=False),
        Shape(a, b, columns=True),
        Shape(1, 7, columns=False),
        Shape(b, a, columns=True),
    )
    matrices = Matrices(shapes, torch.device("cpu"))
    x = torch.cat(
        [(random(h, w, seed=seed + h) * 10 ** (spread * random(h, 1, seed=w))).view(-1) for h, w, _ in shapes]
    )
    if empty:
        x[: a * b // 2] = 0
        x[: 3 * a * b : 1 + seed % 3] = 0
    if bad is not None:
        x[bad[0] * a * b] = bad[1]
    found = []
    heights, widths = matrices.heights, matrices.widths
    for topic in (matrix_scales_cpu, matrix_scales_reference):
        octets, peaks = matrix_scales_reference.encode_scales(
            matrix_scales_reference.row_mean_squares(x, matrices), heights
        )
        rows = matrix_scales_reference.decode_scales(octets, heights, peaks)
        wanted = matrix_scales_reference.column_mean_squares(x, rows, matrices)
        octets, peaks = matrix_scales_reference.encode_scales(wanted, widths)
        columns = torch.cat([matrix_scales_reference.decode_scales(octets, widths, peaks), matrices.ones])
        lost, codes, back = x.clone(), torch.empty_like(x, dtype=torch.int8), torch.zeros_like(x)
        topic.quantise(lost, rows, columns, dead_zone, codes, matrices)
        topic.add_decoded(codes, rows, columns, back, matrices)
        found.append((codes, lost.view(torch.int32), back.view(torch.int32)))
        of_rows, of_columns = topic.row_mean_squares(x, matrices), topic.column_mean_squares(x, rows, matrices)
        expected = matrix_scales_reference.row_mean_squares(x, matrices)
        torch.testing.assert_close(of_rows, expected, rtol=1e-12, atol=0, equal_nan=True)
        torch.testing.assert_close(of_columns, wanted, rtol=1e-12, atol=0, equal_nan=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
def test_lines_are_measured_as_rows_and_columns_are(threads: int) -> None:
    """To the last bit by the same kernels, of several vectors at once; large ones go another way."""
    shapes = (Shape(1, 5, columns=False), Shape(150, 33, columns=True), Shape(70, 9, columns=False))
    matrices = Matrices(shapes, CPU)
    vectors = random(2, sum(a * b for a, b, _ in shapes))
    vectors[1, -1] = math.inf
    with mock.patch.object(matrix_scales_cpu, "shared_out", return_value=threads > 1):
        found = matrix_scales_cpu.line_mean_squares(vectors, matrices)
    for vector, lines in zip(vectors, found, strict=True):
        of_rows = matrix_scales_cpu.row_mean_squares(vector, matrices).split_with_sizes([1, 150, 70])
        of_columns = matrix_scales_cpu.column_mean_squares(vector, torch.ones(matrices.num_rows), matrices)
        assert torch.equal(lines, torch.cat([of_rows[0], of_columns, of_rows[2]]))
    expected = matrix_scales_reference.line_mean_squares(vectors, matrices)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0, equal_nan=True)


BESIDE = Quantiser(1.0, 0.5, own=0.25, beside=0.0004)


@pytest.mark.parametrize(
    ("quantiser", "limited"),
    [(Quantiser(1.4, 0.5), False), (Quantiser(1.4, 0.5, keep=False), False), (BESIDE, False), (BESIDE, True)],
)
def test_one_call_is_all_its_steps(quantiser: Quantiser, limited: bool) -> None:
    """With scales of columns and without, of zeros, and of a matrix that is not finite."""
    shapes = (Shape(40, 33, columns=True), Shape(3, 70, columns=False), Shape(20, 16, columns=True))
    matrices = Matrices(shapes, CPU)
    n = sum(a * b for a, b, _ in shapes)
    x, beside = random(2, n).unbind()
    x[:66] = 0
    x[-1] = math.inf
    found = []
    for encode in (matrix_scales_cpu.encode, matrix_scales_reference.encode, _steps):
        lost, codes, back = x.clone(), torch.full((n + 1,), 7, dtype=torch.int8), torch.ones(n)
        octets = torch.empty(matrices.num_rows + matrices.num_columns, dtype=torch.uint8)
        peaks = torch.full((2 * len(shapes),), 7.0)
        most = torch.linspace(0, 0.001, matrices.num_rows, dtype=torch.float64) if limited else None
        encode(lost, matrices, quantiser, codes[:n], octets, peaks, beside if quantiser.beside else None, most)
        topic = matrix_scales_reference if encode is matrix_scales_reference.encode else matrix_scales_cpu
        topic.add(codes[:n], octets, peaks, back, matrices)
        finite = matrices.num_rows - 20  # the bytes of the last matrix mean nothing
        found.append((codes, lost.view(torch.int32), octets[:finite], peaks.view(torch.int32), back.view(torch.int32)))
    for other in found[1:]:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found[0], other, strict=True))
    assert torch.equal(found[0][1], x.view(torch.int32)) != quantiser.keep


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("bad", [None, math.inf, math.nan])
def test_a_change_in_one_call_is_the_encoded_difference(bad: float | None, limited: bool) -> None:
    """Bit for bit, in one call and step by step; a change that is not finite is noticed."""
    shapes = (Shape(40, 33, columns=False), Shape(1, 70, columns=False), Shape(20, 16, columns=False))
    matrices, quantiser = Matrices(shapes, CPU), BESIDE._replace(keep=False)
    most = torch.linspace(0, 0.001, matrices.num_rows, dtype=torch.float64) if limited else None
    n = sum(a * b for a, b, _ in shapes)
    x, old = random(2, n).unbind()
    x[:66] = old[:66]  # nothing moves in two rows
    if bad is not None:
        x[-5] = bad

    def memory() -> tuple[Tensor, Tensor, Tensor]:
        octets = torch.empty(matrices.num_rows, dtype=torch.uint8)
        return torch.empty(n, dtype=torch.int8), octets, torch.empty(2 * len(shapes))

    wanted = memory()
    matrix_scales_reference.encode(x - old, matrices, quantiser, *wanted, x, most)
    for encode in (matrix_scales_cpu.encode_change, matrix_scales_reference.encode_change, _steps_of_change):
        made = memory()
        assert encode(x, old, matrices, quantiser, *made, fresh, most) == (bad is None)
        assert bad is not None or all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


def _steps_of_change(x: Tensor, *arguments: Any) -> bool:
    return matrix_scales_reference.encode_change_with(matrix_scales_cpu, x, *arguments)


def _steps(x: Tensor, *arguments: Any) -> None:
    """What several threads do."""
    matrix_scales_reference.encode_with(matrix_scales_cpu, x, *arguments)


@pytest.mark.parametrize("threads", [1, 2])
def test_noise_is_of_each_rows_size(threads: int) -> None:
    """Bit for bit that of the definition, also in rows of several pieces; rows of size 0 keep a zero's sign."""
    matrices = Matrices((Shape(150, 33, columns=False), Shape(2, 2700, columns=False)), CPU)
    sizes = torch.arange(152.0) % 3
    x = random(1, 150 * 33 + 5400)[0]
    x[0] = -0.0
    ours, theirs, zeros = x.clone(), x.clone(), torch.zeros_like(x)
    with mock.patch.object(matrix_scales_cpu, "shared_out", return_value=threads > 1):
        matrix_scales_cpu.add_noise(ours, sizes, (1, 1 << 31), matrices)
        matrix_scales_cpu.add_noise(zeros, sizes, (1, 1 << 31), matrices)
    matrix_scales_reference.add_noise(theirs, sizes, (1, 1 << 31), matrices)
    assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
    wide = zeros[150 * 33 :].view(2, 2700)  # sizes 0 and 1
    assert torch.equal(zeros[:33], torch.zeros(33))
    assert not wide[0].any()
    assert float(wide[1].abs().max()) == pytest.approx(0.5, abs=0.01)
    assert float(wide[1].mean()) == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("threads", [1, 2])
def test_changes_are_measured_as_rows_are(threads: int) -> None:
    """The mean squares of a difference, without memory for it."""
    matrices = Matrices((Shape(150, 33, columns=False), Shape(1, 70, columns=False), Shape(3, 5, columns=False)), CPU)
    x, old = random(2, sum(a * b for a, b, _ in matrices.shapes)).unbind()
    x[33:66] = old[33:66]
    x[-1] = math.nan
    with mock.patch.object(matrix_scales_cpu, "shared_out", return_value=threads > 1):
        found = matrix_scales_cpu.change_mean_squares(x, old, matrices)
    expected = matrix_scales_reference.change_mean_squares(x, old, matrices)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0, equal_nan=True)
    assert found[1] == 0


@pytest.mark.parametrize("feedback", [False, True])
def test_a_rank_knows_what_its_own_message_stands_for(feedback: bool) -> None:
    """It sums what the messages say, and does not read its own."""
    n, rank, world = 3000, 1, 3
    state = State("unit", rank, world)
    state.begin()
    method = codec("ecsq", ONCE)
    residual = Residual(None, 1.0, torch.empty(world, n))
    rows = random(world, n)
    rounds = (
        method.reduce_scatter_with_feedback(rows, residual, state) if feedback else method.reduce_scatter(rows, state)
    )
    received = simulate.echo(next(rounds), rank, world)
    expected = method.decode_sum(received)
    received.buffer[rank] = 0
    with pytest.raises(StopIteration) as stop:
        rounds.send(received)
    assert torch.equal(stop.value.value.total, expected)


def test_the_bytes_do_not_depend_on_the_number_of_threads() -> None:
    """Of matrices of unequal widths, one of them too low for scales of its columns."""
    shapes: list[tuple[str, tuple[int, ...]]] = [("a", (1500, 900)), ("b", (8, 3000)), ("c", (3000, 70))]
    segments = segments_of(shapes, 1)
    row, method = random(1, segments[-1].stop), codec("ecsq", ONCE)
    before, messages, sums = torch.get_num_threads(), [], []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            messages.append(method.encode(row, begun(*segments)))
            sums.append(method.decode(messages[-1]))
    finally:
        torch.set_num_threads(before)
    for message, total in zip(messages[1:], sums[1:], strict=True):
        assert torch.equal(messages[0].buffer, message.buffer)
        assert torch.equal(sums[0], total)


ENERGY = (
    st.floats(0, math.inf)
    | st.integers(-260, 4).map(lambda quarters: 2.0 ** (quarters / 4))
    | st.sampled_from([0.0, 1e-320, 1e-76, math.inf, math.nan])
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(ENERGY, max_size=12), max_size=5))
def test_rows_and_columns_have_the_references_bytes_and_scales(matrices: list[list[float]]) -> None:
    """Bit for bit: at the edges between two bytes, of zeros, of what float32 does not hold, and of no rows."""
    energies = torch.tensor([energy for matrix in matrices for energy in matrix], dtype=torch.float64)
    lengths = torch.tensor([len(matrix) for matrix in matrices], dtype=torch.int64)
    found = []
    for topic in (matrix_scales_cpu, matrix_scales_reference):
        octets, peaks = topic.encode_scales(energies, lengths)
        scales = topic.decode_scales(octets, lengths, peaks)
        found.append((octets, peaks.nan_to_num(nan=-1.0), scales.nan_to_num(nan=-1.0)))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))


@given(st.lists(st.floats(1e-15, 1e30), min_size=1, max_size=40))
def test_a_scale_is_within_an_eighth_of_an_octave(energies: list[float]) -> None:
    length = torch.tensor([len(energies)])
    found, peaks = kernels.matrix_scales.on(CPU).encode_scales(torch.tensor(energies, dtype=torch.float64), length)
    scales = kernels.matrix_scales.on(CPU).decode_scales(found, length, peaks)
    for energy, scale in zip(energies, scales.tolist(), strict=True):
        if energy >= max(energies) * 2.0**-127:
            assert abs(math.log2(scale) - math.log2(energy) / 2) <= 0.125 + 1e-6
        else:
            assert scale == 0, "lost, and left in the residual"


def test_a_matrix_has_the_scales_it_has_alone() -> None:
    """Beside one 10^9 times as large, one of zeros and one that is not finite."""
    energies = random(40).double().square()
    all_of_them = torch.cat([energies, 1e9 * energies, 0 * energies, math.nan * energies])
    lengths = torch.full((4,), 40)
    found, peaks = kernels.matrix_scales.on(CPU).encode_scales(all_of_them, lengths)
    alone, peak = kernels.matrix_scales.on(CPU).encode_scales(energies, lengths[:1])
    assert torch.equal(found[:80], alone.repeat(2))
    assert peaks[0] == peak[0]
    scales = kernels.matrix_scales.on(CPU).decode_scales(found, lengths, peaks)
    assert not bool(scales[80:120].any())
    assert bool(scales[120:].isnan().all())


@settings(max_examples=30, deadline=None)
@given(
    shape=st.sampled_from([(40, 30), (300,), (3, 500), (20, 5, 7), (16, 16)]),
    step=st.sampled_from([0.3, 1.0, 1.4, 3.0]),
    dead_zone=st.sampled_from([0.5, 0.6, 0.8]),
    columns=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_error_is_less_than_the_dead_zone(
    shape: tuple[int, ...], step: float, dead_zone: float, columns: bool, seed: int
) -> None:
    """In steps of each element, also in the largest: codes are not cut."""
    values = random(*shape, seed=seed)
    values = values * values.abs()
    config = {"step": step, "dead_zone": dead_zone, "columns": columns, **ONCE}
    arrived, _ = sent(values, config)
    # rows and columns as the method takes them, here by hand
    x = values.view(-1, 35) if len(shape) == 3 else values.view(-1, shape[-1])
    rows = x.square().mean(1, keepdim=True).sqrt()
    units = rows * ((x / rows).square().mean(0).sqrt() if columns and x.shape[0] >= 16 else 1)
    eighths = 2 ** (0.125 * 3)  # the row's, the column's, and what the first does to the second
    assert bool(((x - arrived.view_as(x)).abs() <= dead_zone * step * units * eighths * (1 + 1e-5)).all())


@pytest.mark.parametrize(("step", "dead_zone"), [(0.25, 0.5), (0.5, 0.5), (0.7, 0.55), (1.0, 0.6), (1.4, 0.6)])
def test_bits_are_near_the_rate_distortion_bound(step: float, dead_zone: float) -> None:
    """Of a Gaussian: 1/2 log2(variance / error). A uniform quantiser with entropy coding comes within 0.254 bits."""
    values = random(512, 512)
    arrived, encoded = sent(values, {"step": step, "dead_zone": dead_zone, **ONCE})
    error = float((arrived - values).square().mean() / values.square().mean())
    above = bits(encoded) - 0.5 * math.log2(1 / error)
    assert 0 < above < 0.254 + 0.07, "0.07: scales, and that they are quarters of octaves"


def test_rows_and_columns_of_any_size_cost_the_same() -> None:
    """Bits and error, each element's in units of its own row and column, are those of the plain matrix."""
    plain = random(256, 192)
    sizes = 10 ** (3 * random(256, 1, seed=1)) * 2 ** random(1, 192, seed=2)
    errors, costs = [], []
    for values, unit in ((plain, torch.ones(1)), (plain * sizes, sizes)):
        arrived, encoded = sent(values, ONCE)
        errors.append(float(((arrived - values) / unit).square().mean()))
        costs.append(bits(encoded))
    assert errors[1] == pytest.approx(errors[0], rel=0.1)
    assert costs[1] < costs[0] + 0.1
    int4 = codec("int4", {})  # at thrice the bits
    of_blocks = int4.decode(int4.encode((plain * sizes).view(1, -1), begun())).view(256, 192)
    assert float(((of_blocks - plain * sizes) / sizes).square().mean()) > 1.3 * errors[1]


def test_columns_are_worth_their_scales() -> None:
    values = random(400, 300) * 10 ** random(1, 300, seed=1)
    shares = []
    for columns in (True, False):
        arrived, encoded = sent(values, {"columns": columns, **ONCE})
        size = values.square().mean(0)
        shares.append((float(((arrived - values).square().mean(0) / size).mean()), bits(encoded)))
    assert shares[0][0] < 0.5 * shares[1][0]


def test_every_parameter_has_scales_of_its_own() -> None:
    """Vectors, matrices, convolutions and a stretch that belongs to nobody, of very different sizes in one unit."""
    shapes: list[tuple[str, tuple[int, ...]]] = [("a", (40, 32)), ("b", (50,)), ("c", (20, 4, 3, 3)), ("d", (30, 2))]
    segments = [s._replace(start=s.start + 100, stop=s.stop + 100) for s in segments_of(shapes, 1)]
    n = segments[-1].stop + 600
    row = random(1, n)
    scales = torch.ones(n)
    for power, s in enumerate(segments):
        scales[s.start : s.stop] = 10.0 ** (3 * power - 5)
    method = codec("ecsq", {"step": 0.5, **ONCE})
    arrived = method.decode(method.encode(row * scales, begun(*segments)))
    wrong = ((arrived - row * scales) / scales).square().view(-1)
    for first, last in [(0, 100), *((s.start, s.stop) for s in segments), (segments[-1].stop, n)]:
        assert 0 < float(wrong[first:last].mean()) < 0.05


def test_a_row_needs_nothing_but_its_bytes() -> None:
    rows = random(3, 5000)
    method = codec("ecsq", ONCE)
    encoded = method.encode(rows, begun(*segments_of([("w", (3 * 50, 100))], 3)))
    whole = method.decode(encoded)
    other = codec("ecsq", {"step": 3.0, **ONCE})  # a receiver does not need the settings either
    for r in range(3):
        assert torch.equal(other.decode(other.received(encoded.row(r).clone(), 5000))[0], whole[r])


def test_only_the_matrix_that_is_not_finite_is_lost() -> None:
    segments = segments_of([("good", (30, 20)), ("bad", (30, 20))], 1)
    row = random(1, 1200)
    row[0, 700] = math.inf
    method = codec("ecsq", ONCE)
    arrived = method.decode(method.encode(row, begun(*segments)))[0]
    assert bool(arrived[:600].isfinite().all())
    assert bool(arrived[600:].isnan().all())


def test_feedback_sends_what_small_elements_add_up_to() -> None:
    """An element below the dead zone arrives after all: its mean over steps is its own."""
    values = random(32, 64)
    values[:, ::2] *= 0.05
    method, world = build("ecsq", {"columns": False}), 1
    states = simulate.states(world, "unit", 0, segments_of([("w", (32, 64))], world))
    total, steps = torch.zeros(2048), 200
    for _ in range(steps):
        states[0].begin(torch.tensor(True))
        total += simulate.reduce_scatter(method, [values.view(1, -1)], states)[0].total
    assert float((total.view(32, 64) / steps - values).abs().max()) < 0.05
    assert float((total.view(32, 64) / steps - values)[:, ::2].norm() / values[:, ::2].norm()) < 0.3


@pytest.mark.parametrize("config", [{"step": 1.4, "dead_zone": 0.7, "columns": False}, {"step": 1.0}])
def test_predicted_changes_stay_near_the_parameters(config: dict[str, Any]) -> None:
    """Of an optimizer with momentum: the replica's distance does not grow, and is a fraction of one update."""
    method = build("delta", {"predict": 0.8, "values": {"method": "ecsq", **config}})
    states = simulate.states(1, "unit", 0, segments_of([("w", (64, 100))], 1))
    generator = torch.Generator().manual_seed(0)
    row, velocity, distances = torch.zeros(6400), torch.zeros(6400), []
    for _ in range(150):
        velocity = 0.9 * velocity + torch.randn(6400, generator=generator)
        row = row - 0.01 * velocity
        states[0].begin(torch.tensor(True))
        gathered = simulate.all_gather(method, [row], states)[0][0]
        distances.append(float((gathered - row).norm() / (0.01 * velocity).norm()))
    assert max(distances[50:]) < 0.5
    assert sum(distances[100:]) < 1.2 * sum(distances[50:100])


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"step": 0}, "step"),
        ({"step": 5.0}, "step"),
        ({"dead_zone": 0.4}, "dead_zone"),
        ({"dead_zone": 1.0}, "dead_zone"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^ecsq: {key}"):
        cc.make("ecsq", config)
