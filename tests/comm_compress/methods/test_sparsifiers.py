"""Sparsifiers, codes of positions and their hybrids against numpy, closed forms and the papers' bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import comm_compress as cc
from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.rounds import Exchange, Sum
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.kernels import Residual
from comm_compress.kernels.reference import (
    bitmap as bitmap_reference,
    positions as positions_reference,
    select as select_reference,
    subsets as permutation,
)
from comm_compress.methods.shared.index_codes import CODES, Packed, smallest
from comm_compress.methods.shared.sparse_rows import SparseRows
from comm_compress.methods.shared.value_codec import probe, reproduces_its_values
from comm_compress.wrappers.error_feedback import ErrorFeedback
from tests.comm_compress.table import build, codec

CPU = torch.device("cpu")

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, 1.0, -1.0]


def normal(rows: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed))


def state(world: int = 1, rank: int = 0) -> State:
    fresh = State("unit", rank, world)
    fresh.begin()
    return fresh


def round_trip(compressor: Codec, rows: Tensor) -> Tensor:
    return compressor.decode(compressor.encode(rows, state(rows.shape[0]))).float()


def top_by_numpy(row: np.ndarray, k: int) -> np.ndarray:
    """Ascending positions of the k largest magnitudes, NaN first, then by lowest index."""
    magnitude = np.where(np.isnan(row), np.inf, np.abs(row))
    return np.sort(np.lexsort((np.arange(row.size), -magnitude, ~np.isnan(row)))[:k])


# ---- selection ------------------------------------------------------------------------------------------------


def largest(module: Any, rows: Tensor, k: int, residual: Residual | None = None) -> tuple[Tensor, Tensor]:
    """Places and values."""
    places, values = torch.empty(rows.shape[0], k, dtype=torch.int32), torch.empty(rows.shape[0], k)
    module.largest(rows, places, values, residual)
    return places, values


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, 400),
    share=st.floats(0, 1),
    seed=st.integers(0, 1000),
    distinct=st.sampled_from([2, 5, 1 << 20]),
    special=st.lists(st.tuples(st.sampled_from(SPECIAL), st.floats(0, 0.999)), max_size=4),
)
def test_topk_is_numpys_stable_sort(
    n: int, share: float, seed: int, distinct: int, special: list[tuple[float, float]]
) -> None:
    """With many equal magnitudes (``distinct``) and whatever else floats can be."""
    rows = (normal(2, n, seed) * distinct).round() / distinct
    for value, place in special:
        rows[0, int(place * n)] = value
    k = round(share * n)
    for module in (kernels.select.on(CPU), select_reference):
        got, values = largest(module, rows, k)
        for row, places, taken in zip(rows.numpy(), got.numpy(), values.numpy(), strict=True):
            assert np.array_equal(places, top_by_numpy(row, k))
            assert taken.tobytes() == row[places].tobytes()


def rows_of(kind: str, n: int) -> Tensor:
    """Long rows, where the threshold is first guessed from every so many-th element: also such as mislead the guess."""
    x = normal(1, n, 7)
    stride = max(1, n >> 14)
    sampled = torch.arange(1 << 14) * stride + ((torch.arange(1 << 14) * 40503 & 0xFFFF) * stride >> 16)
    sampled = sampled[sampled < n]
    if kind == "constant":
        return torch.full((1, n), -2.5)
    if kind == "sparse":
        return x * (torch.rand(1, n, generator=torch.Generator().manual_seed(1)) < 0.002)
    if kind == "sampled places large":
        x[:, sampled] += 100
    if kind == "sampled places zero":
        x[:, sampled] = 0
    if kind == "large ones at the end":
        x[:, -n // 50 :] *= 50
    if kind == "one value in two places":
        x[:, : n // 2] = x[:, n - n // 2 :]
    return x


@pytest.mark.parametrize("n", [(1 << 16) - 1, 1 << 16, 150_001])
@pytest.mark.parametrize(
    "kind",
    [
        "normal",
        "constant",
        "sparse",
        "sampled places large",
        "sampled places zero",
        "large ones at the end",
        "one value in two places",
    ],
)
def test_topk_of_long_rows_is_numpys_stable_sort(kind: str, n: int) -> None:
    rows = rows_of(kind, n)
    for k in (1, n // 1000, n // 100, n // 3, n):
        got, values = largest(kernels.select.on(CPU), rows, k)
        assert np.array_equal(got[0].numpy(), top_by_numpy(rows[0].numpy(), k)), k
        assert torch.equal(values, rows[:, got[0].long()]), k


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 300), seed=st.integers(0, 100), threshold=st.floats(0, 3))
def test_at_least_is_a_comparison(n: int, seed: int, threshold: float) -> None:
    rows = normal(3, n, seed)
    floors = torch.tensor([threshold, 0.0, 100.0])
    for module in (kernels.select.on(CPU), select_reference):
        found = module.at_least(rows, floors)
        for row, (places, values), floor in zip(rows.numpy(), found, floors.numpy(), strict=True):
            assert np.array_equal(places.numpy(), np.flatnonzero(np.abs(row) >= floor))
            assert np.array_equal(values.numpy(), row[places.numpy()])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["normal", "constant", "sparse", "sampled places large", "sampled places zero"])
@pytest.mark.parametrize("n", [1000, 70_001, 400_003])  # the last in three parts: threads.PART
def test_what_is_added_on_the_way_is_chosen_from(kind: str, n: int, threads: int) -> None:
    """The sums, and what is chosen from them, are the same bit for bit in one pass as in two; in parts as in one."""
    rows = torch.cat([rows_of(kind, n), normal(1, n)])
    old = normal(2, n, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for decay in (1.0, 0.9):
            target = rows + old * decay
            new = torch.full((2, n), math.nan)
            places, values = largest(kernels.select.on(CPU), rows, n // 100, Residual(old, decay, new))
            assert torch.equal(new, target)
            assert torch.equal(values, target.gather(1, places.long()))
            assert all(
                np.array_equal(p, top_by_numpy(t, n // 100))
                for p, t in zip(places.numpy(), target.numpy(), strict=True)
            )
            floors = torch.tensor([0.5, 2.5])
            found = kernels.select(rows).at_least(rows, floors, Residual(old, decay, new.fill_(math.nan)))
            assert torch.equal(new, target)
            for t, (at, reached), floor in zip(target, found, floors, strict=True):
                assert torch.equal(at, (t.abs() >= floor).nonzero().flatten().int())
                assert torch.equal(reached, t[at.long()])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("old", [None, torch.bfloat16])
def test_any_residual_is_added(old: torch.dtype | None) -> None:
    """None in the first step, bfloat16 where it is kept so; and rows of any dtype."""
    n = 100_000
    waiting = None if old is None else normal(2, n, 5).to(old)
    for dtype in (torch.float32, torch.bfloat16):
        rows = normal(2, n).to(dtype)
        target = rows.float() if waiting is None else rows.float() + waiting.float() * 0.5
        new = torch.empty(2, n)
        sent = codec("topk", {}).encode_with_feedback(rows, Residual(waiting, 0.5, new), state(2))
        assert torch.equal(codec("topk", {}).decode(sent) + new, target)
        assert int((new != target).sum()) == 2 * n // 100


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("topk", {}),
        ("topk", {"values": "bf16"}),
        ("topk", {"selection": "chunked", "chunk_size": 300}),
        ("topk", {"values": "bf16", "order": "quantize_first"}),
        ("thresholdv", {}),
        ("thresholdv", {"threshold": 1.0, "values": "fp16"}),
        ("thresholdv", {"quantile": 0.5}),
    ],
)
def test_feedback_in_one_pass_is_feedback_in_three(name: str, config: dict[str, Any]) -> None:
    """The same bytes and the same residual as of a target that was added beforehand."""
    n = 200_001
    rows, old, new = normal(2, n), normal(2, n, 1), torch.empty(2, n)
    compressor, target = codec(name, config), rows + old
    expected = compressor.encode(target, state(2))
    sent = compressor.encode_with_feedback(rows, Residual(old, 1.0, new), state(2))
    assert sent.lengths == expected.lengths
    assert torch.equal(sent.buffer, expected.buffer)
    assert torch.equal(new, compressor.subtract_contribution(target, expected))


@settings(max_examples=40, deadline=None)
@given(bits=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 100))
def test_bitmaps_are_numpys_packbits_and_come_back(bits: int, share: float, seed: int) -> None:
    k = round(share * bits)
    chosen = np.random.default_rng(seed).permuted(np.tile(np.arange(bits), (2, 1)), axis=1)[:, :k]
    places = torch.from_numpy(np.sort(chosen, 1).astype(np.int32))
    flags = np.zeros((2, bits), np.uint8)
    np.put_along_axis(flags, chosen, 1, 1)
    expected = np.packbits(flags, 1, bitorder="little")
    for module in (kernels.bitmap.on(CPU), bitmap_reference):
        bitmap = torch.full(expected.shape, 255, dtype=torch.uint8)
        module.mark_bits(places, bitmap)
        assert np.array_equal(bitmap.numpy(), expected)
        assert torch.equal(module.marked_bits(bitmap, k), places)


# ---- codes of positions ---------------------------------------------------------------------------------------


def positions(n: int, k: int, seed: int, clustered: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    start = int(torch.randint(0, n - k + 1, (), generator=generator)) if clustered else 0
    chosen = start + torch.arange(k) if clustered else torch.randperm(n, generator=generator)[:k].sort().values
    return chosen.int().unsqueeze(0)


def ideal_bits(n: int, k: int) -> float:
    """log2 C(n, k)."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


@pytest.mark.parametrize("code", CODES.values(), ids=list(CODES))
@settings(max_examples=60, deadline=None)
@given(
    n=st.sampled_from([1, 2, 7, 255, 256, 257, 5000]),
    share=st.floats(0, 1),
    seed=st.integers(0, 1000),
    clustered=st.booleans(),
)
def test_positions_come_back(code: Any, n: int, share: float, seed: int, clustered: bool) -> None:
    k = round(share * n)
    indices = positions(n, k, seed, clustered)
    coded = code.encode(indices, n)
    assert coded.dtype == torch.uint8
    assert torch.equal(code.decode(coded, n, k), indices)
    declared = code.size(n, k)
    assert coded.shape == (1, declared) if code.fixed_size else coded.shape[1] <= declared


@pytest.mark.parametrize("code", [c for c in CODES.values() if c.fixed_size], ids=lambda c: c.name)
def test_rows_are_coded_side_by_side(code: Any) -> None:
    rows = torch.cat([positions(1000, 30, seed) for seed in range(3)])
    coded = code.encode(rows, 1000)
    assert torch.equal(code.decode(coded, 1000, 30), rows)
    assert all(torch.equal(coded[r : r + 1], code.encode(rows[r : r + 1], 1000)) for r in range(3))


@settings(max_examples=60, deadline=None)
@given(
    n=st.sampled_from([1, 2, 255, 5000, 1 << 20]),
    share=st.floats(0, 1),
    low=st.integers(0, 30),
    gaps=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_positions_are_the_references_bytes(n: int, share: float, low: int, gaps: bool, seed: int) -> None:
    k = max(1, round(share * min(n, 3000)))
    indices = torch.cat([positions(n, k, seed), positions(n, k, seed + 1)])
    steps = positions_reference.gap_steps(indices[:1], 8)
    assert kernels.positions(indices).gap_steps(indices[:1], 8) == steps
    assert steps == [sum(int(gap) - 1 >> b for gap in np.diff(indices[0].numpy(), prepend=-1)) for b in range(8)]
    strings = [torch.full((2, size), 255, dtype=torch.uint8) for size in (-(-(k + (n >> low)) // 8), -(-k * low // 8))]
    expected = [string.clone() for string in strings]
    kernels.positions(indices).encode(indices, low, gaps, *strings)
    positions_reference.encode(indices, low, gaps, *expected)
    for mine, theirs in zip(strings, expected, strict=True):
        assert torch.equal(mine, theirs)
    for module in (kernels.positions.on(CPU), positions_reference):
        assert torch.equal(module.decode(*strings, low, gaps, k), indices)


# bits an index may exceed the least by, measured 1.3 %, 0.4 %, 1.0 % and 7.2 %, 5.8 %, 4.8 %
@pytest.mark.parametrize(
    ("density", "rice", "elias_fano"), [(1 / 64, 0.02, 0.08), (0.01, 0.01, 0.06), (0.001, 0.02, 0.05)]
)
def test_positions_cost_what_theory_says(density: float, rice: float, elias_fano: float) -> None:
    n = 1 << 20
    k = round(n * density)
    indices, least = positions(n, k, 0), ideal_bits(n, k)
    for name, excess in (("rice", rice), ("elias_fano", elias_fano)):
        bits = 8 * CODES[name].encode(indices, n).numel()
        assert least <= bits <= (1 + excess) * least, f"{name}: {bits / k:.3f} bits, {least / k:.3f} are the least"


@given(n=st.integers(1, 10**6), share=st.floats(0, 1))
def test_the_best_code_is_the_smallest(n: int, share: float) -> None:
    k = round(share * n)
    size = smallest(n, k, fixed_size=True).size(n, k)
    assert size == min(code.size(n, k) for code in CODES.values() if code.fixed_size)
    assert smallest(n, k, fixed_size=False).size(n, k) <= size + 1


def test_an_index_beyond_the_row_is_noticed() -> None:
    coded = CODES["packed"].encode(torch.tensor([[3, 900]], dtype=torch.int32), 1000)
    with pytest.raises(AssertionError, match="900"):
        CODES["packed"].decode(coded, 800, 2)
    with pytest.raises(AssertionError, match="bits"):
        CODES["bitmap"].decode(torch.zeros(1, 100, dtype=torch.uint8), 800, 2)


def test_chunk_local_positions_take_log2_of_the_chunk() -> None:
    """SparseLoCo's 12 bits: 64 of every 4096, whatever the row's length."""
    chunks = torch.stack([positions(4096, 64, seed)[0] + 4096 * seed for seed in range(10)]).view(1, -1)
    code = Packed(4096, 64)
    coded = code.encode(chunks, 40_960)
    assert coded.numel() * 8 == 640 * 12
    assert torch.equal(code.decode(coded, 40_960, 640), chunks)


# ---- top-k ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "energy"), [("normal", 0.085), ("laplace", 0.16)])
def test_energy_kept_at_one_percent(kind: str, energy: float) -> None:
    """Closed form: E[x^2; |x| > t] / E[x^2] at the 99 % quantile t of |x|: 8.46 % and 16.2 %."""
    x = normal(1, 1 << 21)
    if kind == "laplace":
        u = torch.rand(1, 1 << 21, generator=torch.Generator().manual_seed(0)) - 0.5
        x = -u.sign() * torch.log1p(-2 * u.abs())
    kept = round_trip(codec("topk", {"ratio": 0.01}), x)
    assert float((kept**2).sum() / (x**2).sum()) == pytest.approx(energy, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 500),
    ratio=st.floats(0.01, 1),
    seed=st.integers(0, 100),
    config=st.sampled_from([{}, {"selection": "chunked", "chunk_size": 64}, {"indices": "rice"}]),
)
def test_topk_contracts(n: int, ratio: float, seed: int, config: dict[str, Any]) -> None:
    compressor = codec("topk", {"ratio": ratio, **config})
    rows = normal(2, n, seed) ** 3
    left = (rows - round_trip(compressor, rows)).double()
    if config.get("selection") == "chunked":  # the bound holds in every chunk, with its own k / n
        for start in range(0, n, 64):
            part = slice(start, min(start + 64, n))
            size = part.stop - start
            k = min(size, max(1, round(ratio * size)))
            assert (left[:, part] ** 2).sum() <= (1 - k / size) * (rows[:, part].double() ** 2).sum() + 1e-6
    else:
        k = min(n, max(1, round(ratio * n)))
        assert ((left**2).sum(1) <= (1 - k / n) * (rows.double() ** 2).sum(1) + 1e-6).all()


@pytest.mark.parametrize("indices", ["int32", "packed", "elias_fano", "rice", "bitmap", "best"])
@pytest.mark.parametrize("n", [1, 63, 64, 200, 1000])
def test_chunks_are_selected_one_by_one(indices: str, n: int) -> None:
    rows = normal(2, n)
    config = {"selection": "chunked", "chunk_size": 64, "k": 3, "indices": indices}
    got = round_trip(codec("topk", config), rows)
    for row, decoded in zip(rows.numpy(), got.numpy(), strict=True):
        expected = np.zeros_like(row)
        for start in range(0, n, 64):
            places = start + top_by_numpy(row[start : start + 64], min(3, len(row[start : start + 64])))
            expected[places] = row[places]
        assert np.array_equal(decoded, expected)


def test_topk_bytes_by_kind() -> None:
    n, k = 10_000, 100
    plain = codec("topk", {"indices": "packed"}).encode(normal(1, n), state()).byte_count(0)
    assert (plain.values, plain.indices) == (4 * k, -(-k * 14 // 8))
    coded = codec("topk", {"values": {"method": "int8", "block_size": 56}}).encode(normal(1, n), state()).byte_count(0)
    assert (coded.values, coded.indices) == (k, CODES["elias_fano"].size(n, k))
    assert 2 * 4 <= coded.metadata <= 2 * 4 + 3  # two scales, padding
    ragged = codec("topk", {"indices": "rice"}).encode(normal(1, n), state()).byte_count(0)
    assert (ragged.values, ragged.metadata) == (4 * k, 8)
    assert ragged.indices < coded.indices


def test_the_default_takes_two_fifths_of_a_bit_an_element() -> None:
    """(32 + 8.55) / 100 bits: 79 times less than float32; with int8 values 192 times."""
    n = 1 << 20
    assert 8 * (codec("topk", {}).wire_bytes(n) or 0) / n == pytest.approx(0.4055, rel=0.001)
    assert 8 * (codec("topk", {"values": "int8"}).wire_bytes(n) or 0) / n == pytest.approx(0.1668, rel=0.002)


# ---- hybrids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["int8", {"method": "int8", "block_size": 32}, "bf16", "fp16", "identity"])
@pytest.mark.parametrize("indices", ["best", "rice", "int32"])
@pytest.mark.parametrize("name", ["topk", "thresholdv"])
def test_kept_values_go_through_the_codec_as_a_row(name: str, values: Any, indices: str) -> None:
    rows = normal(2, 3000) ** 3
    kept = round_trip(codec(name, {"indices": indices}), rows)
    got = round_trip(codec(name, {"indices": indices, "values": values}), rows)
    method, settings_ = (values, {}) if isinstance(values, str) else (values["method"], {"block_size": 32})
    for row, exact in zip(got, kept, strict=True):
        places = exact.nonzero().flatten()
        assert len(places) >= 15
        expected = torch.zeros_like(row)
        expected[places] = round_trip(codec(method, settings_), exact[places].unsqueeze(0))[0]
        assert torch.equal(row, expected)


def test_a_codec_of_rows_of_variable_size_may_carry_values() -> None:
    rows = normal(3, 2000)
    config = {"ratio": 0.05, "values": {"method": "thresholdv", "threshold": 2.5}}
    got = round_trip(codec("topk", config), rows)
    kept = round_trip(codec("topk", {"ratio": 0.05}), rows)
    assert torch.equal(got, kept * (kept.abs() >= 2.5))
    assert got.any()


def test_quantised_first_is_the_topk_of_the_quantised_row() -> None:
    rows = normal(2, 2000)
    got = round_trip(codec("topk", {"ratio": 0.2, "values": "bf16", "order": "quantize_first"}), rows)
    rounded = rows.bfloat16().float()
    differs = False
    for row, exact, y in zip(rounded.numpy(), rows.numpy(), got.numpy(), strict=True):
        places = top_by_numpy(row, 400)
        expected = np.zeros_like(row)
        expected[places] = row[places]
        assert np.array_equal(y, expected)
        differs |= not np.array_equal(places, top_by_numpy(exact, 400))
    assert differs, "ties among rounded values should have changed the selection somewhere"


def test_which_codecs_give_back_their_own_values() -> None:
    assert reproduces_its_values(codec("bf16", {}))
    assert not reproduces_its_values(codec("int8", {}))
    assert torch.isfinite(probe()).all()
    assert (probe() > 0).any()
    assert (probe() < 0).any()


# ---- random-k -------------------------------------------------------------------------------------------------


def test_ranks_draw_the_same_k_distinct_coordinates_and_others_at_the_next_step() -> None:
    compressor, n = codec("randomk", {"k": 40}), 1000
    states = simulate.states(3, "unit")
    drawn = [compressor.encode(normal(3, n, r), states[r]).agreed["drawn"] for r in range(3)]
    assert all(torch.equal(d, drawn[0]) for d in drawn)
    assert len(set(drawn[0].tolist())) == 40
    assert (drawn[0].diff() > 0).all()
    states[0].begin()
    assert not torch.equal(compressor.encode(normal(3, n), states[0]).agreed["drawn"], drawn[0])


@given(n=st.integers(1, 300), key=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)))
@settings(max_examples=40, deadline=None)
def test_a_subset_of_all_is_a_permutation_and_smaller_ones_lie_within_larger(n: int, key: tuple[int, int]) -> None:
    draw = [set(kernels.subsets.on(CPU).random_subset(key, n, k, CPU).tolist()) for k in range(n + 1)]
    assert draw[n] == set(range(n))
    assert all(len(draw[k]) == k and draw[k] <= draw[k + 1] for k in range(n))


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1 << 20, (1 << 20) + 1, 2**31 - 1])
@pytest.mark.parametrize("k", [0, 1, 1023, 1025, 5000])
def test_subsets_are_the_references(n: int, k: int) -> None:
    for key in ((1, 2), (2**32 - 1, 5)):
        mine, theirs = (
            module.random_subset(key, n, min(n, k), CPU) for module in (kernels.subsets.on(CPU), permutation)
        )
        assert mine.dtype == torch.int64
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("n", [40, 1000, 4097])
def test_subsets_are_drawn_uniformly(n: int) -> None:
    """Chi-square of how often each coordinate is drawn, and of how many fall together into each tenth of the row.

    Each is within five standard deviations of its mean: a true uniform drawing fails once in a million seeds.
    """
    k, trials = n // 10, 3000
    counts, tenths = np.zeros(n), np.zeros((10, 10))
    for trial in range(trials):
        drawn = kernels.subsets.on(CPU).random_subset((trial, 77), n, k, CPU).numpy()
        counts[drawn] += 1
        first, second = np.random.default_rng(trial).choice(drawn, 2, replace=False) * 10 // n
        tenths[first, second] += 1
    chi = ((counts - trials * k / n) ** 2 / (trials * k / n * (1 - k / n))).sum()
    assert abs(chi - (n - 1)) < 5 * math.sqrt(2 * (n - 1))
    sizes = np.bincount(np.arange(n) * 10 // n)
    expected = trials * (np.outer(sizes, sizes) - np.diag(sizes)) / n / (n - 1)
    pairs = ((tenths - expected) ** 2 / expected).sum()
    assert abs(pairs - 99) < 5 * math.sqrt(2 * 99)


def test_every_coordinate_and_every_pair_is_as_likely_as_any_other() -> None:
    """k of n without replacement: inclusion k / n, of two at once k (k - 1) / (n (n - 1)); five standard deviations."""
    compressor, n, k, trials = codec("randomk", {"k": 4}), 12, 4, 4000
    mine, together = state(), np.zeros((n, n))
    for _ in range(trials):
        mine.begin()
        chosen = compressor.encode(torch.ones(1, n), mine).agreed["drawn"].numpy()
        together[np.ix_(chosen, chosen)] += 1
    for seen, p in ((np.diag(together), k / n), (together[~np.eye(n, dtype=bool)], k * (k - 1) / n / (n - 1))):
        assert np.abs(seen / trials - p).max() < 5 * math.sqrt(p * (1 - p) / trials)


@pytest.mark.parametrize("k", [100, 1000])
@pytest.mark.parametrize("scaling", ["unbiased", "contractive"])
def test_randomk_errs_by_the_closed_form(scaling: str, k: int) -> None:
    x, mine = normal(2, 4000), state(2)
    compressor, n, trials = codec("randomk", {"k": k, "scaling": scaling}), 4000, 300
    errors = []
    for _ in range(trials):
        mine.begin()
        errors.append(float(((compressor.decode(compressor.encode(x, mine)) - x) ** 2).sum()))
    expected = n / k - 1 if scaling == "unbiased" else 1 - k / n
    assert np.mean(errors) / float((x**2).sum()) == pytest.approx(expected, rel=0.02)


def test_feedback_follows_the_scaling() -> None:
    assert isinstance(build("randomk", {}), ErrorFeedback)
    unbiased = build("randomk", {"scaling": "unbiased"})
    assert isinstance(unbiased, Codec)
    assert unbiased.traits.unbiased
    assert not build("randomk", {"scaling": "unbiased", "values": "bf16"}).traits.unbiased
    assert isinstance(build("randomk", {"error_feedback": False}), Codec)
    with pytest.raises(ValueError, match="residual grow"):
        build("randomk", {"scaling": "unbiased", "error_feedback": True})


def test_randomk_is_summed_on_the_wire_when_values_are_exact() -> None:
    for values, request in ((None, Sum), ("bf16", Exchange)):
        compressor = codec("randomk", {"values": values})
        assert isinstance(next(compressor.reduce_scatter(normal(2, 100), state(2))), request)


def test_randomk_with_feedback_delivers_everything_in_the_end() -> None:
    """The residual stays bounded (about n / k gradients), so the mean delivered tends to the gradient."""
    compressor, states = build("randomk", {"k": 4}), simulate.states(1)
    gradient, delivered, steps = torch.arange(1.0, 17.0).unsqueeze(0), torch.zeros(16), 1000
    for _ in range(steps):
        states[0].begin()
        delivered += simulate.reduce_scatter(compressor, [gradient], states)[0].total
    torch.testing.assert_close(delivered / steps, gradient[0], rtol=0.05, atol=0)


# ---- threshold-v ----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 500), threshold=st.floats(1e-3, 5), seed=st.integers(0, 100))
def test_a_fixed_threshold_is_a_mask(n: int, threshold: float, seed: int) -> None:
    rows = normal(3, n, seed)
    got = round_trip(codec("thresholdv", {"threshold": threshold}), rows)
    assert torch.equal(got, rows * (rows.abs() >= float(np.float32(threshold))))
    assert float(((rows - got).double() ** 2).sum()) <= 3 * n * threshold**2


def test_nothing_above_the_threshold_is_an_empty_row() -> None:
    compressor = codec("thresholdv", {"threshold": 10.0})
    rows = -normal(3, 100).abs()  # all negative: the threshold is of magnitudes
    rows[1, 5] = -20
    encoded = compressor.encode(rows, state(3))
    assert encoded.lengths is not None
    assert encoded.lengths[0] == encoded.lengths[2] == 0
    assert encoded.lengths[1] > 0
    assert torch.equal(compressor.decode(encoded).nonzero(), torch.tensor([[1, 5]]))


def test_nan_is_above_every_threshold_and_zero_below() -> None:
    rows = torch.zeros(1, 50)
    rows[0, 9] = math.nan
    for config in ({"threshold": 3e38}, {"quantile": 0.0}, {}):
        encoded = codec("thresholdv", config).encode(rows, state())
        assert codec("thresholdv", config).decode(encoded).isnan().nonzero().tolist() == [[0, 9]]
        assert encoded.byte_count(0).values == 4, "one value, no zeros"


@pytest.mark.parametrize("quantile", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("n", [5000, 400_000])
def test_a_quantile_sends_its_share(quantile: float, n: int) -> None:
    """Exactly where the row is its own sample; else within five standard deviations of the sample's count."""
    rows = normal(1, n) ** 3
    sent = int((round_trip(codec("thresholdv", {"quantile": quantile}), rows) != 0).sum())
    expected = (1 - quantile) * n
    if n <= 1 << 14:
        assert sent == round(expected)
    else:
        assert abs(sent / expected - 1) < 5 / math.sqrt((1 - quantile) * (1 << 14))


def test_a_matrix_with_one_large_column_does_not_mislead_the_sample() -> None:
    """Every 24th or 25th element of 400,000 would fall into few columns of a matrix that is 100 wide."""
    matrix = normal(4000, 100)
    matrix[:, 0] *= 100
    sent = (round_trip(codec("thresholdv", {"quantile": 0.99}), matrix.view(1, -1)) != 0).sum()
    assert 0.6 < float(sent) / 4000 < 1.5


# ---- dgc ------------------------------------------------------------------------------------------------------


def dgc_by_numpy(gradients: list[np.ndarray], kept: list[int], m: float, masking: bool) -> list[np.ndarray]:
    """What one rank sends at each step, from the paper's algorithm."""
    u = v = np.zeros_like(gradients[0])
    sent = []
    for g, k in zip(gradients, kept, strict=True):
        u = np.float32(m) * u + g
        v = v + u
        out = np.zeros_like(v)
        for row in range(len(v)):
            places = top_by_numpy(v[row], k)
            out[row, places] = v[row, places]
            v[row, places] = 0
            if masking:
                u[row, places] = 0
        sent.append(out)
    return sent


@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("warmup", [0, 4])
def test_dgc_is_the_papers_algorithm(masking: bool, warmup: int) -> None:
    world, n, steps = 2, 500, 7
    config = {"ratio": 0.01, "momentum": 0.8, "momentum_masking": masking, "warmup_ratio_steps": warmup}
    compressor, states = build("dgc", config), [State("unit", rank, world) for rank in range(world)]
    gradients = [[normal(world, n, 10 * step + rank) for step in range(steps)] for rank in range(world)]
    # 0.25 (0.01 / 0.25)^(t / 4): 25, 11.2, 5, 2.24 and then 1 percent
    kept = [125, 56, 25, 11, 5, 5, 5] if warmup else [5] * steps
    expected = [dgc_by_numpy([g.numpy() for g in mine], kept, 0.8, masking) for mine in gradients]
    for step in range(steps):
        for mine in states:
            mine.begin()
        results = simulate.reduce_scatter(compressor, [gradients[r][step] for r in range(world)], states)
        for rank, result in enumerate(results):
            total = sum(expected[sender][step][rank] for sender in range(world))
            np.testing.assert_allclose(result.total.numpy(), total, rtol=1e-5, atol=1e-6)


def test_dgc_keeps_what_its_values_codec_loses() -> None:
    """sent + v = old v + u: nothing vanishes, whatever the values are rounded to."""
    compressor, mine = codec("dgc", {"values": "int8", "ratio": 0.1}), state(1)
    total_sent, total_u = torch.zeros(1, 300), torch.zeros(1, 300)
    for step in range(5):
        mine.begin()
        u_before = mine.get("u")
        gradient = normal(1, 300, step)
        total_u += gradient + (0 if u_before is None else 0.9 * u_before)
        total_sent += compressor.decode(compressor.encode(gradient, mine))
        mine.commit()
    left = mine.get("v")
    assert left is not None
    torch.testing.assert_close(total_sent + left, total_u, rtol=1e-5, atol=1e-5)
    assert (left[total_sent != 0] != 0).any()


def test_dgc_clips_the_units_norm() -> None:
    compressor = codec("dgc", {"ratio": 1.0, "clip_unit_norm": 2.0})
    large, small = normal(2, 100) * 5, normal(2, 100) * 0.01
    torch.testing.assert_close(round_trip(compressor, large).norm(), torch.tensor(2.0))
    assert torch.equal(round_trip(compressor, small), small)


def test_dgc_refuses_another_gradient_than_it_waits_with() -> None:
    compressor, mine = codec("dgc", {}), state()
    compressor.encode(normal(1, 10), mine)
    mine.begin()
    with pytest.raises(ValueError, match="has changed"):
        compressor.encode(normal(1, 11), mine)


# ---- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("topk", {"k": 0}, ["k = 0", "positive"]),
        ("topk", {"selection": "sampled"}, ["selection = 'sampled'", "'chunked'"]),
        ("topk", {"selection": "chunked", "chunk_size": 1}, ["chunk_size = 1"]),
        ("topk", {"indices": "golomb"}, ["indices = 'golomb'", "'rice'"]),
        ("topk", {"values": "int9"}, ["values", "did you mean 'int8'"]),
        ("topk", {"values": {"method": "int8", "block_size": 1}}, ["values", "block_size = 1"]),
        ("topk", {"values": {"method": "int8", "scale": "global"}}, ["values = ", "single rows"]),
        ("topk", {"values": {"method": "int8", "error_feedback": True}}, ["values = ", "single rows"]),
        ("topk", {"values": "dgc"}, ["values = 'dgc'", "remember nothing"]),
        ("thresholdv", {"values": "randomk"}, ["values = 'randomk'", "send all"]),
        ("topk", {"order": "quantize_first"}, ["order = 'quantize_first'", "without values"]),
        ("topk", {"order": "quantize_first", "values": "int8"}, ["order = 'quantize_first'", "'int8'"]),
        ("randomk", {"scaling": "mean"}, ["scaling = 'mean'", "'unbiased'"]),
        ("randomk", {"ratio": 1.5}, ["ratio = 1.5"]),
        ("thresholdv", {"threshold": 0.0}, ["threshold = 0.0", "above 0"]),
        ("thresholdv", {"threshold": -1}, ["threshold = -1", "above 0"]),
        ("thresholdv", {"quantile": 1.0}, ["quantile = 1.0", "below 1"]),
        ("thresholdv", {"threshold": 1.0, "quantile": 0.5}, ["quantile = 0.5", "threshold is given"]),
        ("dgc", {"momentum": 1.0}, ["momentum = 1.0"]),
        ("dgc", {"warmup_ratio_steps": -1}, ["warmup_ratio_steps = -1"]),
        ("dgc", {"clip_unit_norm": 0.0}, ["clip_unit_norm = 0.0"]),
        ("dgc", {"error_feedback": True}, ["error_feedback", "itself"]),
    ],
)
def test_mistakes_are_named(name: str, config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        cc.make(name, config)
    for word in words:
        assert word in str(caught.value)


def test_sparse_rows_carry_what_another_method_chose() -> None:
    """The helper alone: exact values and positions of two rows, subtracted where they were sent."""
    rows, n = SparseRows(), 1000
    values, indices = normal(2, 8), torch.cat([positions(n, 8, 0), positions(n, 8, 1)])
    encoded = rows.encode(values, indices, n, state())
    dense = torch.zeros(2, n).scatter_(1, indices.long(), values)
    assert torch.equal(rows.decode(encoded), dense)
    assert torch.equal(rows.sum_into(encoded, torch.empty(n)), dense[0] + dense[1])
    target = normal(2, n, 5)
    expected = torch.where(dense != 0, 0, target)
    assert torch.equal(rows.subtract(target, encoded), expected)
