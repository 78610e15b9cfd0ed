"""Block codes: the fused CPU kernels give the definition's bytes, sums and residuals, bit for bit."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from comm_compress.kernels import BlockCode, Residual
from comm_compress.kernels.elements.random import cpu as random_cpu, reference as random_reference
from comm_compress.kernels.elements.residual import cpu as residual_cpu
from comm_compress.kernels.quantisers.blocks import cpu as blocks_cpu, reference as blocks_reference

CPU = torch.device("cpu")
CODES = [
    *(BlockCode(32, bits, (1 << (bits - 1)) - 1) for bits in (2, 3, 4, 5, 6, 7, 8)),
    *(BlockCode(128, bits, (1 << (bits - 1)) - 1, "l2", "stochastic") for bits in (2, 3, 8)),
    BlockCode(2048, 4, 7),
    BlockCode(96, 3, 2, clip_sigmas=1.7, short_scales=True),
    BlockCode(None, 4, 7, rounding="stochastic", short_scales=True),
    BlockCode(1040, 5, 15),
    BlockCode(104, 4, 7, rounding="stochastic"),
    BlockCode(None, 8, 127, rounding="stochastic"),
    BlockCode(None, 3, 3, "l2", "stochastic"),
    BlockCode(64, 4, 7, rotate=True),
    BlockCode(2048, 8, 127, rounding="stochastic", rotate=True),
    BlockCode(512, 1, 1, "max", "stochastic"),
    BlockCode(512, 1, 1, "l2", "stochastic"),
    BlockCode(1024, 1, 1, "mean", "sign"),
    BlockCode(8, 1, 1, "mean", "sign"),
    BlockCode(512, 2, 1, "max", "stochastic", 2.5),
    BlockCode(512, None, 1, "max", "stochastic", 2.5),
    BlockCode(40, 8, 448, rounding="e4m3"),
    BlockCode(256, 8, 57344, rounding="e5m2"),
]


# Each kernel is compiled for each dtype of rows and of old residuals, a second a time. What loads them knows nothing of
# the code, so narrow ones are tried with one code of each kind: rounded, stochastic, rotated, of one bit, float8.
NARROW = [CODES[number] for number in (2, 9, 17, 19, 21, 25)]
WAITING = [(code, waits) for code in CODES for waits in ("no feedback", "nothing", "float32")]
WAITING += [(code, "bfloat16") for code in NARROW]


class Outcome(NamedTuple):
    """All that the three primitives write."""

    message: Tensor
    scales: Tensor
    total: Tensor
    decoded: Tensor
    residual: Tensor


def outcome(module: object, code: BlockCode, rows: Tensor, residual: Residual | None) -> Outcome:
    """Encode into strided views of a message, as codecs do; decode and sum."""
    num_rows, n = rows.shape
    head, size = 4 * code.blocks(n), code.code_bytes(n)
    message = torch.zeros(num_rows, math.ceil((head + size) / 4) * 4, dtype=torch.uint8)
    scales, codes = message[:, :head].view(torch.float32), message[:, head : head + size]
    total, decoded = torch.empty(n), torch.empty(num_rows, n)
    module.encode(rows, code, (5, 6), codes, scales, residual)  # type: ignore[attr-defined]
    module.decode_sum(codes, scales, code, total)  # type: ignore[attr-defined]
    module.decode(codes, scales, code, decoded)  # type: ignore[attr-defined]
    return Outcome(codes.clone(), scales.clone(), total, decoded, torch.empty(0) if residual is None else residual.new)


def awkward(num_rows: int, n: int, dtype: torch.dtype) -> Tensor:
    """Rows far apart in size; long ones with blocks that are zero, denormal and not finite."""
    generator = torch.Generator().manual_seed(n)
    exponents = torch.randint(-30, 30, (num_rows, 1), generator=generator)
    rows = (torch.randn(num_rows, n, generator=generator) * 10.0**exponents).to(dtype)
    if n > 4000:
        rows[0, 1234], rows[-1, 3000], rows[0, 4000] = math.nan, math.inf, -0.0
        rows[0, :512] = 0
        rows[-1, 2048:2600] = 1e-41
    return rows


def assert_same_bits(got: Tensor, expected: Tensor, what: str) -> None:
    assert torch.equal(got.isnan(), expected.isnan()), what
    assert torch.equal(got.nan_to_num(), expected.nan_to_num()), what


@pytest.mark.parametrize(("code", "waits"), WAITING, ids=str)
@pytest.mark.parametrize(("num_rows", "n"), [(1, 1), (2, 7), (3, 257), (2, 5000), (1, 20_001)])
def test_the_kernels_give_the_definitions_bytes(
    code: BlockCode, num_rows: int, n: int, waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that are as narrow as what waits."""
    monkeypatch.setattr(residual_cpu, "FEW", 0)
    rows = awkward(num_rows, n, torch.bfloat16 if waits == "bfloat16" else torch.float32)
    found = []
    for module in (blocks_cpu, blocks_reference):
        residual = None
        if waits != "no feedback":
            old = None if waits == "nothing" else rows.nan_to_num(1, 1, 1).flip(1).to(getattr(torch, waits))
            residual = Residual(old, 0.9, torch.empty(num_rows, n))
        found.append(outcome(module, code, rows, residual))
    for name, got, expected in zip(Outcome._fields, *found, strict=True):
        assert_same_bits(got.float(), expected.float(), name)


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)], ids=str)
def test_a_difference_has_the_bytes_of_itself(code: BlockCode, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """And whether all scales are finite tells whether it is."""
    n = 1000
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(n, generator=generator).to(dtype) for dtype in dtypes)
    a[5], b[7], a[9] = 0, -0.0, b[9]
    for bad in (None, math.nan, -math.inf):
        if bad is not None:
            b[n - 1] = bad
        wanted = torch.empty(1, code.code_bytes(n), dtype=torch.uint8), torch.empty(1, code.blocks(n))
        blocks_reference.encode((a.float() - b.float()).unsqueeze(0), code, (5, 6), *wanted)
        for module in (blocks_cpu, blocks_reference):
            codes, scales = torch.empty_like(wanted[0]), torch.empty_like(wanted[1])
            assert module.encode_difference(a, b, code, (5, 6), codes, scales) == (bad is None)
            assert torch.equal(codes, wanted[0])
            assert_same_bits(scales, wanted[1], "scales")


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, 3e-38, 3.4e38, -3.4e38]


@settings(max_examples=150, deadline=None)
@given(
    code=st.sampled_from(CODES),
    n=st.integers(1, 300),
    exponent=st.integers(-44, 38),
    special=st.lists(st.tuples(st.sampled_from(SPECIAL), st.floats(0, 0.999)), max_size=4),
    seed=st.integers(0, 1000),
)
def test_also_at_the_ends_of_float32s_range(
    code: BlockCode, n: int, exponent: int, special: list[tuple[float, float]], seed: int
) -> None:
    rows = torch.randn(2, n, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    for value, place in special:
        rows.view(-1)[int(place * rows.numel())] = value
    found = [outcome(m, code, rows, Residual(None, 1.0, torch.empty(2, n))) for m in (blocks_cpu, blocks_reference)]
    for name, got, expected in zip(Outcome._fields, *found, strict=True):
        assert_same_bits(got.float(), expected.float(), name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [3000, residual_cpu.FEW])
def test_narrow_rows_are_encoded_as_their_float32_values(dtype: torch.dtype, n: int) -> None:
    """Made float32 before, where they are few, or by a kernel of their own."""
    rows = torch.randn(2, n, generator=torch.Generator().manual_seed(1)).to(dtype)
    for residual in (None, Residual(rows.float() * 0.1, 1.0, torch.empty(2, n))):
        narrow = outcome(blocks_cpu, CODES[2], rows, residual)
        narrow = narrow._replace(residual=narrow.residual.clone())
        wide = outcome(blocks_cpu, CODES[2], rows.float(), residual)
        assert all(torch.equal(a, b) for a, b in zip(narrow, wide, strict=True))


@pytest.mark.parametrize("code", [CODES[0], BlockCode(256, 8, 127), BlockCode(512, 4, 7, "max", "stochastic")], ids=str)
def test_the_number_of_threads_changes_nothing(code: BlockCode) -> None:
    rows = torch.randn(2, 600_001, generator=torch.Generator().manual_seed(0))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            residual = Residual(rows.flip(1), 1.0, torch.empty(rows.shape))
            found.append(outcome(blocks_cpu, code, rows, residual))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_sums_in_lanes_are_sums() -> None:
    x = torch.randn(3, 5, 3000, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(blocks_reference.lane_sums(x), x.double().sum(-1), rtol=1e-12, atol=1e-12)
    squares = blocks_reference.lane_sums(x, squares=True)
    torch.testing.assert_close(squares, x.double().square().sum(-1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1, 511, 513, 1024, 1025, 300_000])
def test_noise_is_the_references(n: int) -> None:
    got = random_cpu.noise_bits((3, 2**32 - 1), 3, n, CPU)
    assert torch.equal(got, random_reference.noise_bits((3, 2**32 - 1), 3, n, CPU))
    assert not torch.equal(got[0], got[1])


def test_noise_is_uniform_and_elements_that_share_a_word_do_not_move_together() -> None:
    """Every bit's mean, and the correlation at every lag that the sharing could show, within five deviations."""
    n = 1 << 20
    words = random_cpu.noise_bits((1, 2), 1, n, CPU)[0]
    for place in range(32):
        assert abs(float(((words >> place) & 1).double().mean()) - 0.5) < 5 * 0.5 / n**0.5
    u = random_reference.as_fractions(words).double() - 0.5
    for lag in (1, 16, 256, 511, 512, 513, 1024):
        assert abs(float((u * u.roll(lag)).mean())) < 5 / 12 / n**0.5, lag


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_rows_are_written_past_the_caches_all_the_same(dtype: torch.dtype) -> None:
    code, n = BlockCode(256, 4, 7), blocks_cpu.FAR + 5
    rows = torch.randn(2, n, generator=torch.Generator().manual_seed(2))
    codes, scales = torch.empty(2, code.code_bytes(n), dtype=torch.uint8), torch.empty(2, code.blocks(n))
    blocks_cpu.encode(rows, code, None, codes, scales)
    got, expected = (torch.full((2, n), 7.0).to(dtype) for _ in range(2))  # one row begins a line, one does not
    blocks_cpu.decode(codes, scales, code, got)
    blocks_reference.decode(codes, scales, code, expected)
    assert torch.equal(got, expected)
    total = torch.empty(n)
    blocks_cpu.decode_sum(codes, scales, code, total)
    blocks_reference.decode_sum(codes, scales, code, rows[0])
    assert torch.equal(total, rows[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("code", CODES)
def test_adding_is_decoding_and_adding(code: BlockCode, dtype: torch.dtype) -> None:
    """In float32 and rounded once; zeros keep their signs."""
    n = 5000
    rows, start = torch.randn(2, 1, n, generator=torch.Generator().manual_seed(3)).unbind()
    rows[0, :200] = 0
    start[0, :100], start[0, 100:200] = 0.0, -0.0
    codes = torch.empty(1, code.code_bytes(n), dtype=torch.uint8)
    scales = torch.empty(1, code.blocks(n))
    blocks_reference.encode(rows, code, (5, 6), codes, scales)
    for module in (blocks_cpu, blocks_reference):
        decoded, expected, out = torch.empty(1, n), start[0].to(dtype), start[0].to(dtype)
        module.decode(codes, scales, code, decoded)
        expected += decoded[0]
        module.decode_add(codes, scales, code, out)
        assert torch.equal(out.view(torch.int16), expected.view(torch.int16))
