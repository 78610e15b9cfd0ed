"""Every Triton kernel gives its reference's bytes: on a GPU, or in Triton's interpreter (`test_triton` starts it)."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from comm_compress.kernels import BlockCode, Residual
from comm_compress.kernels.coding import rans, rans_stream
from comm_compress.kernels.coding.entropy import reference as entropy_reference
from comm_compress.kernels.coding.frequencies import Table
from comm_compress.kernels.elements.casts import cpu as casts_cpu, reference as casts_reference
from comm_compress.kernels.elements.random import reference as random_reference
from comm_compress.kernels.packing.bits import reference as bits_reference
from comm_compress.kernels.quantisers.blocks import reference as blocks_reference
from comm_compress.kernels.quantisers.matrix_scales import reference as matrix_scales_reference
from comm_compress.kernels.quantisers.matrix_scales.matrices import Quantiser, Shape, matrices_of
from comm_compress.kernels.quantisers.onebit import reference as onebit_reference
from comm_compress.kernels.quantisers.powers import reference as powers_reference
from comm_compress.kernels.quantisers.votes import reference as votes_reference
from comm_compress.kernels.selection.select import reference as select_reference
from comm_compress.kernels.tools.scratch import fresh

pytest.importorskip("triton", reason="no triton, which comes with CUDA builds of torch")

from comm_compress.kernels.coding.entropy import triton as entropy_cuda
from comm_compress.kernels.coding.streams import triton as streams_cuda
from comm_compress.kernels.elements.casts import triton as casts_cuda
from comm_compress.kernels.elements.random import triton as random_cuda
from comm_compress.kernels.packing.bits import triton as bits_cuda
from comm_compress.kernels.quantisers.blocks import triton as blocks_cuda
from comm_compress.kernels.quantisers.matrix_scales import triton as matrix_scales_cuda
from comm_compress.kernels.quantisers.onebit import triton as onebit_cuda
from comm_compress.kernels.quantisers.powers import triton as powers_cuda
from comm_compress.kernels.quantisers.votes import triton as votes_cuda
from comm_compress.kernels.selection.select import triton as select_cuda

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = torch.device("cpu" if INTERPRETED else "cuda")
pytestmark = (
    []
    if INTERPRETED
    else [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)
CPU = torch.device("cpu")
SPECIAL = (float("nan"), float("inf"), 1e-40, 3e38, -0.0, 1e-45)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, any NaN like any other."""
    plain = [x.nan_to_num(7.0).view(torch.int32) for x in (a, b)]
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(*plain)


@pytest.mark.parametrize("key", [(1, 2), (0xDEADBEEF, 0x89ABCDEF)])
def test_random_numbers(key: tuple[int, int]) -> None:
    assert torch.equal(random_cuda.random_bits(key, 5000, HERE).cpu(), random_reference.random_bits(key, 5000, CPU))
    assert torch.equal(random_cuda.uniform(key, 5000, HERE).cpu(), random_reference.uniform(key, 5000, CPU))
    for n in (1, 513, 5000):
        mine = random_cuda.noise_bits(key, 3, n, HERE).cpu()
        assert torch.equal(mine, random_reference.noise_bits(key, 3, n, CPU))


@pytest.mark.parametrize("bits", range(1, 32))
def test_bit_streams(bits: int) -> None:
    for n in (0, 1, 7, 65, 2100):
        codes = random_reference.random_bits((bits, n), 2 * n, CPU).view(2, n)
        for dtype in (torch.int32, torch.int8, torch.uint8) if bits <= 8 and n == 65 else (torch.int32,):
            messages = []
            for kernel, device in ((bits_reference, CPU), (bits_cuda, HERE)):
                message = torch.full((2, -(-n * bits // 8) + 3), 255, dtype=torch.uint8, device=device)
                packed = message[:, 1:-2]  # between bytes that are none of the kernel's
                kernel.pack(codes.to(device, dtype), bits, packed)
                back = kernel.unpack(packed, bits, n, torch.int32 if dtype == torch.int32 else torch.uint8)
                messages.append((message.cpu(), back.cpu()))
            for theirs, mine in zip(*messages, strict=True):
                assert torch.equal(theirs, mine), (n, dtype)


CODES = [
    BlockCode(256, 8, 127),
    BlockCode(64, 4, 7),
    BlockCode(40, 3, 3),
    BlockCode(96, 2, 1, clip_sigmas=1.2, short_scales=True),
    BlockCode(5000, 4, 7, rounding="stochastic", short_scales=True),
    BlockCode(8, 5, 15),
    BlockCode(None, 8, 127),
    BlockCode(None, 4, 7, rotate=True),
    BlockCode(96, 4, 7, rotate=True),
    BlockCode(5000, 6, 31, size="l2"),
    BlockCode(8192, 2, 1, size="mean", rounding="stochastic"),
    BlockCode(None, 2, 1, size="mean", rounding="stochastic", clip_sigmas=2.7),
    BlockCode(256, 1, 1, size="mean", rounding="sign"),
    BlockCode(2048, 1, 1, size="l2", rounding="stochastic"),
    BlockCode(None, 1, 1, size="mean", rounding="sign"),
    BlockCode(256, 8, 448, rounding="e4m3"),
    BlockCode(256, 8, 57344, rounding="e5m2"),
    BlockCode(24, 8, 448, size="mean", rounding="e4m3"),  # larger than the format holds
    BlockCode(64, None, 1, "max", "stochastic", 2.5),
    BlockCode(None, None, 1, "l2", "stochastic"),
    BlockCode(1 << 20, 7, 63, size="l2", rounding="stochastic"),
    BlockCode(512, 8, 127, size="l2", rounding="stochastic", clip_sigmas=3.0, rotate=True),
]


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize(
    ("shape", "dtype", "feedback", "special"),
    [
        ((2, 1), torch.float32, None, ()),
        ((3, 1000), torch.float32, torch.float32, ()),
        ((1, 17_003), torch.bfloat16, None, ()),
        ((2, 6161), torch.float16, torch.bfloat16, ()),
        ((2, 3000), torch.float32, torch.float32, SPECIAL),
        pytest.param(
            *((3, 1_000_003), torch.float32, torch.float32, ()),
            marks=pytest.mark.skipif(INTERPRETED, reason="many tiles: for a GPU"),
        ),
    ],
    ids=["one", "feedback", "long", "halves", "special", "many tiles"],
)
def test_block_codes(
    code: BlockCode,
    shape: tuple[int, int],
    dtype: torch.dtype,
    feedback: torch.dtype | None,
    special: tuple[float, ...],
) -> None:
    """Message, residual, decoded rows and sum; rows of the message in the middle of other bytes."""
    num_rows, n = shape
    generator = torch.Generator().manual_seed(n)
    rows = torch.randn(shape, generator=generator) * torch.tensor([1.0, 1e-3, 1e3])[:num_rows, None]
    for place, value in enumerate(special):
        rows.view(-1)[place * 407 + 3] = value
    rows = rows.to(dtype)
    old = None if feedback is None else torch.randn(shape, generator=generator).to(feedback)
    blocks, num_bytes = code.blocks(n), code.code_bytes(n)
    results = []
    for kernel, device in ((blocks_reference, CPU), (blocks_cuda, HERE)):
        row_bytes = 4 * blocks + -(-num_bytes // 4) * 4 + 8
        message = torch.full((num_rows, row_bytes), 255, dtype=torch.uint8, device=device)
        scales, codes = message[:, : 4 * blocks].view(torch.float32), message[:, 4 * blocks : 4 * blocks + num_bytes]
        waiting = None if old is None else old.to(device)
        residual = Residual(waiting, 0.9, torch.full(shape, 7.0, device=device)) if n > 1 else None
        kernel.encode(rows.to(device), code, (77, 0xF1234567), codes, scales, residual)
        decoded, total = torch.empty(shape, device=device), torch.empty(n, device=device)
        kernel.decode(codes, scales, code, decoded)
        kernel.decode_sum(codes, scales, code, total)
        narrow = torch.empty(shape, dtype=torch.float16, device=device)
        kernel.decode(codes, scales, code, narrow)
        left = decoded if residual is None else residual.new
        results.append([x.cpu() for x in (message, scales, left, decoded, total, narrow.float())])
    theirs, mine = results
    if not theirs[1].isnan().any():
        assert torch.equal(mine[0], theirs[0])
    codes_of = slice(4 * blocks, None)
    assert torch.equal(mine[0][:, codes_of], theirs[0][:, codes_of])
    for name, a, b in zip(("scales", "residual", "decoded", "sum", "as float16"), mine[1:], theirs[1:], strict=True):
        assert same_bits(a, b), name


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_changes_in_block_codes(code: BlockCode, dtype: torch.dtype) -> None:
    """What `delta` sends and adds: a difference's bytes, and a replica that they were added to, signs of zeros too."""
    n, generator = 6161, torch.Generator().manual_seed(5)
    row, replica = torch.randn(2, n, generator=generator)
    row[:200] = replica[:200]
    replica[300:400], row[300:400] = -0.0, -1e-12  # 8-bit floats have a negative zero
    exact = dtype == torch.float32 or not INTERPRETED  # the interpreter cuts off instead of rounding
    results: list[tuple[Tensor, ...]] = []
    for kernel, device in ((blocks_reference, CPU), (blocks_cuda, HERE)):
        a, b = row.to(device, dtype), replica.to(device, copy=True)
        codes = torch.full((1, code.code_bytes(n)), 255, dtype=torch.uint8, device=device)
        scales = torch.empty(1, code.blocks(n), device=device)
        assert kernel.encode_difference(a, b, code, (77, 0xF1234567), codes, scales)
        out = b.to(dtype if exact else torch.float32)
        kernel.decode_add(codes, scales, code, out)
        results.append((codes.cpu(), scales.cpu(), out.float().cpu()))
        b[n - 1] = float("inf")
        assert not kernel.encode_difference(a, b, code, (77, 0xF1234567), codes, scales)
    theirs, mine = results
    assert torch.equal(mine[0], theirs[0])
    assert same_bits(mine[1], theirs[1])
    assert same_bits(mine[2], theirs[2])


def magnitudes(kind: str, num_rows: int, n: int) -> Tensor:
    """Rows with many, few or no equal magnitudes."""
    x = torch.randn(num_rows, n, generator=torch.Generator().manual_seed(n))
    if kind == "ties":
        x = (2 * x).round()
    elif kind == "mostly zeros":
        x[x.abs() < 1.5] = 0
    elif kind == "not finite":
        x = x.bfloat16().float()
        x.view(-1)[0], x.view(-1)[-1] = float("nan"), -float("inf")
    return x


@pytest.mark.parametrize("waits", ["no feedback", "nothing", "a residual"])
@pytest.mark.parametrize("kind", ["random", "ties", "mostly zeros", "not finite"])
@pytest.mark.parametrize(
    ("num_rows", "n", "ks"),
    [(2, 1, (0, 1)), (3, 700, (1, 50, 700)), (2, 4096, (40,)), (2, 20_001, (1, 300, 20_001)), (1, 4097, (4000,))],
)
def test_the_largest(kind: str, num_rows: int, n: int, ks: tuple[int, ...], waits: str) -> None:
    rows = magnitudes(kind, num_rows, n)
    for k in ks:
        found = []
        for module, device in ((select_cuda, HERE), (select_reference, torch.device("cpu"))):
            places = torch.full((num_rows, k), -1, dtype=torch.int32, device=device)
            values, new = torch.empty(num_rows, k, device=device), torch.empty(num_rows, n, device=device)
            old = rows.nan_to_num(1, 1, 1).flip(1).contiguous().to(device) if waits == "a residual" else None
            residual = None if waits == "no feedback" else Residual(old, 0.9, new)
            module.largest(rows.to(device), places, values, residual)
            found.append((places.cpu(), values.cpu(), values.cpu() if residual is None else new.cpu()))
        (places, values, new), expected = found
        assert torch.equal(places, expected[0]), k
        assert same_bits(values, expected[1]), k
        assert same_bits(new, expected[2]), k


@pytest.mark.parametrize("kind", ["random", "ties", "not finite"])
@pytest.mark.parametrize("n", [0, 1, 9000])
def test_at_least(kind: str, n: int) -> None:
    floors = torch.tensor([1.0, 0.0, float("inf"), 1e30])
    rows = magnitudes(kind, 4, n + 1)[:, 1:].contiguous()
    found = select_cuda.at_least(rows.to(HERE), floors.to(HERE))
    for mine, theirs in zip(found, select_reference.at_least(rows, floors), strict=True):
        assert mine[0].dtype == torch.int32
        assert torch.equal(mine[0].cpu(), theirs[0])
        assert same_bits(mine[1].cpu(), theirs[1])


@pytest.mark.parametrize("group_size", [8, 40, 1024, 4096, 8192])
@pytest.mark.parametrize(
    ("shape", "dtype", "feedback", "special"),
    [
        ((2, 1), torch.float32, None, ()),
        ((2, 5001), torch.bfloat16, None, ()),
        ((3, 3000), torch.float32, torch.float32, ()),
        ((2, 2500), torch.float32, torch.bfloat16, SPECIAL),
    ],
    ids=["one", "plain", "feedback", "special"],
)
def test_means_and_votes(
    group_size: int,
    shape: tuple[int, int],
    dtype: torch.dtype,
    feedback: torch.dtype | None,
    special: tuple[float, ...],
) -> None:
    (num_rows, n), generator = shape, torch.Generator().manual_seed(1)
    rows = torch.randn(shape, generator=generator)
    rows[:, n // 4 : n // 2] = 0
    for place, value in enumerate(special):
        rows.view(-1)[place * 407 + 3] = value
    rows = rows.to(dtype)
    old = None if feedback is None else torch.randn(shape, generator=generator).to(feedback)
    results = []
    for onebit, votes, device in ((onebit_reference, votes_reference, CPU), (onebit_cuda, votes_cuda, HERE)):
        x = rows.to(device)
        above, below = (torch.empty(num_rows, -(-n // group_size), device=device) for _ in range(2))
        residual = None if old is None else Residual(old.to(device), 0.9, torch.empty(shape, device=device))
        bits, signs = (torch.full((num_rows, -(-n // 8)), 99, dtype=torch.uint8, device=device) for _ in range(2))
        marks = torch.full(above.shape, 99, dtype=torch.uint8, device=device)
        rows_out, votes_out = (torch.empty(shape, device=device) for _ in range(2))
        total, decision = (torch.empty(n, device=device) for _ in range(2))
        onebit.encode(x, group_size, above, below, bits, residual)
        onebit.decode(above, below, bits, group_size, rows_out)
        onebit.decode_sum(above, below, bits, group_size, total)
        votes.encode(x, group_size, (5, 0xF1234567), marks, signs)
        votes.decode(marks, signs, group_size, votes_out)
        votes.majority(marks, signs, group_size, decision)
        left = rows_out if residual is None else residual.new
        results.append({"bits": bits, "signs": signs, "marks": marks, "above": above, "below": below, "left": left})
        results[-1] |= {"rows": rows_out, "total": total, "votes": votes_out, "decision": decision}
    for name, theirs in results[0].items():
        assert same_bits(theirs.float(), results[1][name].cpu().float()), name


def spread(num_rows: int, n: int, special: tuple[float, ...] = ()) -> Tensor:
    """Float32 rows with magnitudes of all sizes, exact powers of two and zeros; ``special`` in the last row only."""
    generator = torch.Generator().manual_seed(n)
    scales = torch.tensor([1e-38, 1.0, 1e38])[:num_rows, None]
    rows = (
        torch.randn(num_rows, n, generator=generator)
        * 8.0 ** -torch.randint(0, 30, (num_rows, n), generator=generator)
        * scales
    )
    rows[:, ::7] = rows[:, ::7].sign() * rows[:, ::7].abs().log2().floor().exp2()
    rows[:, 3::11] = 0
    for place, value in enumerate(special):
        rows[-1, (place * 407 + 3) % n] = value
    return rows.nan_to_num(1.0, 3e38, -3e38) if not special else rows


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Of another dtype; without bfloat16's denormals, which Triton's interpreter misreads."""
    x = x.to(dtype)
    return torch.where(x.abs() < torch.finfo(dtype).tiny, 0, x) if dtype == torch.bfloat16 else x


POWERS = [
    ((2, 1), torch.float32, None, ()),
    ((3, 4100), torch.float32, None, ()),
    ((2, 5001), torch.bfloat16, torch.float32, ()),
    ((3, 2500), torch.float32, torch.bfloat16, (1e-40, 3e38, -0.0, 1e-45)),
    ((3, 2500), torch.float32, torch.float32, SPECIAL),
]


@pytest.mark.parametrize("key", [None, (5, 0xF1234567)], ids=["nearest", "random"])
@pytest.mark.parametrize(
    ("shape", "dtype", "feedback", "special"), POWERS, ids=["one", "plain", "halves", "small", "special"]
)
def test_powers_of_two(
    key: tuple[int, int] | None,
    shape: tuple[int, int],
    dtype: torch.dtype,
    feedback: torch.dtype | None,
    special: tuple[float, ...],
) -> None:
    """Messages, residuals, decoded rows and sums, in nine bits and in a window."""
    (num_rows, n), rows = shape, narrowed(spread(*shape, special), dtype)
    old = None if feedback is None else narrowed(spread(num_rows, n).flip(1), feedback)
    results = []
    for kernel, device in ((powers_reference, CPU), (powers_cuda, HERE)):
        x, found = rows.to(device), {}
        for name in ("powers", "window"):
            first, second = (n, -(-n // 8)) if name == "powers" else (-(-n // powers_reference.POWER_BLOCK), n)
            message = torch.full((num_rows, first + second + 3), 99, dtype=torch.uint8, device=device)
            fields = message[:, :first], message[:, first : first + second]
            new = torch.full(shape, 7.0, device=device)
            residual = None if old is None else Residual(old.to(device), 0.9, new)
            encode, decode, decode_sum = kernel.encode, kernel.decode, kernel.decode_sum
            if name == "window":
                encode, decode, decode_sum = kernel.encode_window, kernel.decode_window, kernel.decode_window_sum
            encode(x, key, *fields, residual)
            decoded, total = torch.empty(shape, device=device), torch.empty(n, device=device)
            decode(*fields, decoded)
            decode_sum(*fields, total)
            if name == "window":  # of a block that is not finite, no matter what
                void = (fields[0] == 0).repeat_interleave(powers_reference.POWER_BLOCK, 1)[:, :n]
                fields[1].masked_fill_(void, 0)
            found |= {f"{name}: message": message.float(), f"{name}: residual": new}
            found |= {f"{name}: rows": decoded, f"{name}: sum": total}
        results.append(found)
    for name, theirs in results[0].items():
        assert same_bits(theirs, results[1][name].cpu()), name


@pytest.mark.parametrize("factor", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_whole_numbers(dtype: torch.dtype, factor: float) -> None:
    """Halves to the even number; with the factor 0 nothing but zeros, whatever the rows hold."""
    halves = torch.arange(-127, 127.5, 0.5, dtype=dtype)
    rows = torch.stack([halves, halves.flip(0)]).repeat(1, 5)
    if factor == 0:
        rows[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    results = []
    for kernel, device in ((casts_reference, CPU), (casts_cpu, CPU), (casts_cuda, HERE)):
        codes = torch.full((2, rows.shape[1] + 5), 7, dtype=torch.int8, device=device)
        kernel.round_to_bytes(rows.to(device), torch.tensor(factor, device=device), codes[:, 2:-3])
        results.append(codes.cpu())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("scale", [0.0, 0.3, torch.nan])
def test_whole_numbers_times_a_scale(scale: float) -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8).repeat(2, 40)[:, 3:-2]
    start = torch.randn(codes.shape, generator=torch.Generator().manual_seed(0))
    results = []
    for kernel, device in ((casts_reference, CPU), (casts_cpu, CPU), (casts_cuda, HERE)):
        stored, taken = torch.empty(codes.shape, device=device), start.to(device, copy=True)
        kernel.scale_bytes(codes.to(device), torch.tensor(scale, device=device), stored)
        kernel.subtract_bytes(codes.to(device), torch.tensor(scale, device=device), taken)
        results.append(torch.cat([stored, taken]).cpu())
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


@pytest.mark.parametrize(
    "to",
    [
        pytest.param(
            torch.bfloat16, marks=pytest.mark.skipif(INTERPRETED, reason="the interpreter cuts off instead of rounding")
        ),
        torch.float16,
    ],
)
@pytest.mark.parametrize("feedback", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("special", [(), SPECIAL], ids=["finite", "special"])
def test_casts_and_sums(to: torch.dtype, feedback: torch.dtype | None, special: tuple[float, ...]) -> None:
    for shape in ((2, 1), (3, 4100)):
        rows = spread(*shape, special)
        old = None if feedback is None else narrowed(spread(*shape).flip(1), feedback)
        results = []
        for kernel, device in ((casts_reference, CPU), (casts_cuda, HERE)):
            out = torch.full((shape[0], shape[1] + 5), 7.0, dtype=to, device=device)
            new, total, wide = (torch.empty(size, device=device) for size in (shape, shape[1], shape[1]))
            residual = Residual(None if old is None else old.to(device), 0.9, new)
            kernel.cast_with_feedback(rows.to(device), residual, out[:, 2:-3])  # between what is not the kernel's
            kernel.sum_rows(out[:, 2:-3], total)
            kernel.sum_rows(rows.to(device).T.contiguous().T, wide)
            results.append([x.float().cpu() for x in (out, new, total, wide)])
        for theirs, mine in zip(*results, strict=True):
            assert same_bits(theirs, mine)


ENTROPY_SIZES = [
    *(0, 1, 6, 900),
    pytest.param(200_001, marks=pytest.mark.skipif(INTERPRETED, reason="many groups: for a GPU")),
]


@pytest.mark.parametrize("tables", [1, 3])
@pytest.mark.parametrize("n", ENTROPY_SIZES)
def test_entropy_coding(n: int, tables: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream and the symbols again: 4 states and 32, with literals and without, in blocks long and short."""
    generator = torch.Generator().manual_seed(n)
    contexts = None if tables == 1 else torch.randint(tables, (n,), generator=generator).to(torch.uint8)
    for many, spread, block in ((1, 3.0, rans_stream.BLOCK), (1, 0.2, 256), (1 << 20, 30.0, rans_stream.BLOCK >> 6)):
        monkeypatch.setattr(rans_stream, "MANY", many)
        symbols = whole_numbers(n, spread, generator)
        stream = torch.cat(rans.encode_with(entropy_reference, symbols, contexts, tables, block=block))
        there = None if contexts is None else contexts.to(HERE)
        ours = torch.cat(rans.encode_with(entropy_cuda, symbols.to(HERE), there, tables, block=block))
        assert torch.equal(ours.cpu(), stream)
        out = torch.empty_like(symbols, device=HERE)
        assert torch.equal(rans.decode_with(entropy_cuda, ours, out, there, tables).cpu(), symbols)


@pytest.mark.parametrize("groups", [8, 1 << 12])
@pytest.mark.parametrize("n", ENTROPY_SIZES[1:])
def test_whole_streams(n: int, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written to the front of a message and read from any address, in blocks of the device's own length or others'."""
    generator = torch.Generator().manual_seed(n)
    for many, spread in ((1, 0.3), (1 << 20, 30.0), (1, 1000.0)):
        monkeypatch.setattr(rans_stream, "MANY", many)
        symbols = whole_numbers(n, spread, generator)
        monkeypatch.setattr(rans_stream, "GROUPS", {"cuda": groups, "cpu": groups})
        wanted = torch.cat(rans.encode_with(entropy_reference, symbols))
        out = torch.full((n + 1,), 77, dtype=torch.uint8, device=HERE)
        size = streams_cuda.encode(symbols.to(HERE), out[:n], fresh)
        assert size == (len(wanted) if len(wanted) < n else 0)
        assert torch.equal(out[:size].cpu(), wanted[:size])
        assert out[n] == 77
        unaligned = torch.cat([wanted[:3], wanted]).to(HERE)[3:]
        for own in (groups, 16):
            monkeypatch.setattr(rans_stream, "GROUPS", {"cuda": own, "cpu": own})
            back = torch.full((n,), 99, dtype=torch.uint8, device=HERE)
            known = unaligned[: rans.front_bytes(HERE, n)].cpu() if own == groups else None
            streams_cuda.decode(unaligned, back, fresh, known)
            assert torch.equal(back.cpu(), symbols)


def whole_numbers(n: int, spread: float, generator: torch.Generator) -> Tensor:
    """uint8 ``[n]``: the bytes of signed numbers from a Gaussian."""
    return (torch.randn(n, generator=generator) * spread).round().clamp(-127, 127).to(torch.int8).view(torch.uint8)


def test_a_damaged_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rans_stream, "MANY", 1)
    symbols = whole_numbers(900, 3.0, torch.Generator().manual_seed(0))
    stream = torch.cat(rans.encode_with(entropy_reference, symbols, block=256))
    back = torch.empty_like(symbols, device=HERE)
    for size in (0, 1, 5, len(stream) // 2):
        with pytest.raises(ValueError, match=f"900 symbols does not end within {size} bytes"):
            streams_cuda.decode(stream[:size].to(HERE), back, fresh)
    place = Table.read(stream.numpy())[1]
    for byte, value, words in ((3, 13, "halved 13 times"), (1, 100, "does not end")):
        damaged = stream.clone()
        damaged[place + byte] = value
        with pytest.raises(ValueError, match=words):
            streams_cuda.decode(damaged.to(HERE), back, fresh)
    damaged = stream.clone()
    damaged[place + 4 * 4 * 33 :] = 0  # words that lead anywhere: wrong symbols, and no memory that is not its own
    streams_cuda.decode(damaged.to(HERE), back, fresh)
    assert not torch.equal(back.cpu(), symbols)


@pytest.mark.parametrize("num_contexts", [1, 3, 16])
def test_counting(num_contexts: int) -> None:
    for n in (1, 5000) if INTERPRETED else (1, 5000, 5_000_011):
        generator = torch.Generator().manual_seed(n)
        symbols = whole_numbers(n, 20.0, generator)
        contexts = torch.randint(num_contexts, (n,), generator=generator).to(torch.uint8) if num_contexts > 1 else None
        wanted = entropy_reference.histogram(symbols, contexts, num_contexts)
        there = None if contexts is None else contexts.to(HERE)
        assert (entropy_cuda.histogram(symbols.to(HERE), there, num_contexts) == wanted).all()


SHAPES = {
    "nothing": (),
    "one element": (Shape(1, 1, columns=False),),
    "rows": (Shape(3, 256, columns=False), Shape(1, 77, columns=False)),
    "columns": (Shape(130, 70, columns=True), Shape(2, 9, columns=False), Shape(17, 300, columns=True)),
}
QUANTISERS = {
    "codes": Quantiser(step=0.25, dead_zone=0.5),
    "a dead zone": Quantiser(step=1.4, dead_zone=0.7, keep=False),
    "beside": Quantiser(step=1.0, dead_zone=0.5, own=0.25, beside=0.05**2),
}


@pytest.mark.parametrize("kind", ["random", "zeros", "not finite"])
@pytest.mark.parametrize(
    ("quantiser", "limited"),
    [(q, False) for q in QUANTISERS.values()] + [(QUANTISERS["beside"], True)],
    ids=[*QUANTISERS, "beside, limited"],
)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_scales_of_matrices(shapes: tuple[Shape, ...], quantiser: Quantiser, limited: bool, kind: str) -> None:
    """All of a message's parts, what is left over, and what the codes stand for."""
    n = sum(s.a * s.b for s in shapes)
    x, beside, total = torch.randn(3, n, generator=torch.Generator().manual_seed(n))
    limits = torch.linspace(0, 0.005, sum(s.a for s in shapes), dtype=torch.float64)
    x *= torch.linspace(-3, 3, n).exp()
    if kind == "zeros" and n:
        x[: n // 2] = 0
    elif kind == "not finite" and n:
        x[n // 3] = torch.inf
        x[-1] = torch.nan
    results = []
    for kernels, device in ((matrix_scales_reference, CPU), (matrix_scales_cuda, HERE)):
        matrices = matrices_of(shapes, device)
        left, added = x.to(device, copy=True), total.to(device, copy=True)
        codes = torch.empty(n, dtype=torch.int8, device=device)
        octets = torch.empty(matrices.num_rows + matrices.num_columns, dtype=torch.uint8, device=device)
        peaks = torch.empty(2 * len(shapes), device=device)
        other = beside.to(device) if quantiser.beside else None
        most = limits.to(device) if quantiser.beside and limited else None
        kernels.encode(left, matrices, quantiser, codes, octets, peaks, other, most)
        kernels.add(codes, octets, peaks, added, matrices)
        lines = kernels.line_mean_squares(torch.stack([added, total.to(device)]), matrices).float()
        results.append([y.cpu() for y in (codes, peaks, left, added, octets, lines)])
    (*theirs, their_octets, their_lines), (*mine, octets, lines) = results
    assert all(same_bits(a.float(), b.float()) for a, b in zip(theirs, mine, strict=True))
    torch.testing.assert_close(lines, their_lines, equal_nan=True)
    if kind != "not finite":
        assert torch.equal(octets, their_octets)


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_moves_on_a_grid(known: bool, limited: bool) -> None:
    shapes = (Shape(40, 64, columns=False),)
    new, old = torch.randn(2, 40 * 64, generator=torch.Generator().manual_seed(1))
    old = new + 0.01 * old
    if not known:
        new[5] = torch.nan
    results = []
    for kernels, device in ((matrix_scales_reference, CPU), (matrix_scales_cuda, HERE)):
        matrices = matrices_of(shapes, device)
        codes = torch.empty(40 * 64, dtype=torch.int8, device=device)
        octets, peaks = torch.empty(40, dtype=torch.uint8, device=device), torch.empty(2, device=device)
        written = codes, octets, peaks
        quantiser = QUANTISERS["beside"]
        vectors = new.to(device, copy=True), old.to(device)
        most = 16 * kernels.change_mean_squares(*vectors, matrices) if limited else None
        if limited:
            sizes = torch.arange(40.0, device=device) % 3 / 100
            kernels.add_noise(vectors[0], sizes, (5, 1 << 31), matrices)
        said = kernels.encode_change(*vectors, matrices, quantiser, *written, fresh, most)
        assert said is known
        results.append([part.cpu() for part in (*written, vectors[0])])
    assert not known or all(torch.equal(a, b) for a, b in zip(*results, strict=True))
