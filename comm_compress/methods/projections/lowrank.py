"""Each rank's own matrices as two thin factors, and the rows or columns that do not fit into them.

PowerSGD (Vogels, Karimireddy and Jaggi, 2019, arXiv 1905.13727) without its all-reduces.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import ByteCount, Encoded, RaggedRow, size_of
from comm_compress.core.segments import Ranges, Segment, other_columns, put_columns, take_columns
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels import Matrices, Shape
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.methods.projections.thin_factors import orthonormal, times
from comm_compress.methods.shared.value_codec import value_codec
from comm_compress.registry import register, require

WORTH_FACTORS = 2  # a matrix goes as factors when it has so many times their elements
HEAD = struct.Struct("<2I")  # of a row: how many matrices, bytes of their values
MATRIX_HEAD = struct.Struct("<5IB")


@dataclass(frozen=True)
class LowRankConfig:
    """Settings of lowrank.

    A line is a row of a matrix that is taller than it is wide (an embedding), and else a column.

    ``rank``: how many columns each of the two factors has.
    ``lines``: that share of a matrix's lines, the largest ones, goes as it is.
    ``line_scales``: bring all other lines to one length first (a power of two, a byte a line), so that small ones keep
    their direction: for gradients whose optimizer rescales every element anyway.
    ``values``: the method that carries the long factor and whole lines; one that encodes single rows and remembers
    nothing.
    ``rest``: the method that carries vectors, and matrices too small to factor; of the same kind.
    """

    rank: int = 8
    lines: float = 0.02
    line_scales: bool = True
    values: Mapping[str, Any] | str = "int8"
    rest: Mapping[str, Any] | str = "int8"

    def __post_init__(self) -> None:
        require(self.rank > 0, "rank", self.rank, "positive")
        require(0 <= self.lines <= 0.5, "lines", self.lines, "between 0 and 0.5")


class _Matrix(NamedTuple):
    """Columns ``start`` on of a row hold an ``[a, b]`` matrix, which goes as factors of rank ``r``.

    Its ``whole`` largest lines go as they are; the others have one length when it is ``scaled``.
    """

    start: int
    a: int
    b: int
    r: int
    whole: int
    scaled: bool

    @property
    def stop(self) -> int:
        return self.start + self.a * self.b

    @property
    def long(self) -> int:
        return max(self.a, self.b)

    @property
    def short(self) -> int:
        return min(self.a, self.b)

    @property
    def num_values(self) -> int:
        return self.long * self.r + self.whole * self.short

    @property
    def is_tall(self) -> bool:
        return self.a >= self.b

    def within(self, row: Tensor) -> Tensor:
        """The matrix that a row holds, as a view ``[a, b]``."""
        return row[self.start : self.stop].view(self.a, self.b)

    def lines(self, row: Tensor) -> Tensor:
        """The lines of the matrix that a row holds, as a view ``[long, short]``."""
        return self.within(row) if self.is_tall else self.within(row).t()


class _Plan(NamedTuple):
    """What a row of a unit is made of: the matrices that go as factors, and the columns between them.

    ``along``: all of the row as matrices, those that go as factors and what lies between; ``which``: of each of the
    former, its place among the latter. ``short`` float64: of every line of every matrix, how many elements it has.
    """

    matrices: tuple[_Matrix, ...]
    others: Ranges
    along: Matrices
    which: tuple[int, ...]
    short: Tensor

    def lengths(self, row: Tensor) -> Tensor:
        """The 2-norms of all lines in a float32 ``row``, matrix after matrix: float32 ``[sum of long]``."""
        topic, shapes = kernels.matrix_scales(row), self.along.shapes
        of_rows = topic.row_mean_squares(row, self.along).split_with_sizes([s.a for s in shapes])
        of_columns: Sequence[Tensor] = ()
        if self.along.num_columns:
            means = topic.column_mean_squares(row, row.new_ones(self.along.num_rows), self.along)
            of_columns = means.split_with_sizes([s.b * s.columns for s in shapes])
        squares = [of_rows[i] if m.is_tall else of_columns[i] for m, i in zip(self.matrices, self.which, strict=True)]
        return (torch.cat(squares) * self.short).sqrt().float()


@functools.lru_cache(maxsize=1024)  # units times directions
def _plan(n: int, matrices: tuple[_Matrix, ...], device: torch.device) -> _Plan:
    shapes, which, column = list[Shape](), list[int](), 0
    for m in matrices:
        if m.start > column:
            shapes.append(Shape(1, m.start - column, columns=False))
        which.append(len(shapes))
        shapes.append(Shape(m.a, m.b, columns=not m.is_tall))
        column = m.stop
    if n > column:
        shapes.append(Shape(1, n - column, columns=False))
    short = torch.tensor([m.short for m in matrices for _ in range(m.long)], dtype=torch.float64, device=device)
    return _Plan(matrices, _others(matrices, n), kernels.matrices_of(tuple(shapes), device), tuple(which), short)


class _Factors(NamedTuple):
    """One matrix on its way: what its lines are scaled by, which go whole, and the two factors."""

    exponents: Tensor  # int8 [long], or empty
    indices: Tensor  # int64 [whole]
    whole: Tensor  # [whole, short]
    left: Tensor  # [r, long]
    right: Tensor  # bfloat16 [short, r], orthonormal to its rounding


class _Product(NamedTuple):
    """What was sent of a matrix: ``first @ second`` ``[a, b]``, but for the lines at ``places``, ``[whole, short]``."""

    matrix: _Matrix
    first: Tensor
    second: Tensor
    indices: Tensor
    whole: Tensor


@register("lowrank", LowRankConfig, error_feedback=True)
class LowRank(Codec):
    """Send each rank's own matrices as two thin, quantised factors, and their largest lines as they are.

        M ~ D (S + U V^T)               S: the largest lines; the factors by one step of subspace iteration
        V = orthonormal(M^T M V')       V' from the last step, for each destination; bfloat16 on the wire
        U = M V (V^T V)^-1              the best left factor for the rounded V; by the codec ``values``
        D                               powers of two, with ``line_scales``

    PowerSGD (arXiv 1905.13727) without its all-reduces: each rank factors its own shard's rows, so the factors can
    be quantised, and parameters can go this way too, as changes (`delta`); ATOMO (arXiv 1806.04090) and GradZip are
    its kin. Why it pays: what a language model's step does to its embedding is nearly of rank one (every token
    that was not seen is pushed the same way), and a batch touches few rows beside that; Adam makes small rows as
    important as large ones, hence ``line_scales``. Biased: error feedback is on by default. As the values of
    `delta` the replica's distance is fed back anyway.

    Bits an element of an a x b matrix, a the longer side: q r / b + 16 r / a, q those of ``values``, 8 / b for
    ``line_scales``, and (q + 32 / b) for each element of a whole line.
    """

    fixed_size = False
    traits = Traits(needs_segments=True, for_changes=True)

    def __init__(self, config: LowRankConfig) -> None:
        self.config = config
        self.values = value_codec(config.values, "values") or UNCOMPRESSED
        self.rest = value_codec(config.rest, "rest") or UNCOMPRESSED

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Encode each row by right factors of its own, which are kept for the next step."""
        num_rows, n = rows.shape
        matrices = self._matrices(n, state.segments)
        plan, starts = _plan(n, matrices, rows.device), self._starts(matrices, rows, state)
        factors = [_factors(plan, row, start) for row, start in zip(rows.float(), starts, strict=True)]
        long = [
            torch.cat([part.flatten() for f in of_row for part in (f.left, f.whole)] or [rows[0, :0].float()])
            for of_row in factors
        ]
        values = self.values.encode(torch.stack(long), state.child("values"))
        rest = self.rest.encode(take_columns(rows, plan.others).float(), state.child("rest"))
        if matrices:
            rights = [torch.cat([f.right.float().flatten() for f in of_row]) for of_row in factors]
            state.propose("right_factors", torch.stack(rights))
        made = [_message(matrices, factors[i], values, rest, i) for i in range(num_rows)]
        return Encoded.ragged(made, n, state.scratch)

    def decode(self, encoded: Encoded) -> Tensor:
        """The rows, float32 ``[R, n]``."""
        out = torch.empty(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        for i, row in enumerate(out):
            products, others, rest = self._parts(encoded.row(i), encoded.n)
            for m, first, second, indices, whole in products:
                torch.mm(first, second, out=m.within(row))
                m.lines(row)[indices] = whole
            put_columns(rest, others, row)
        return out

    def subtract_contribution(self, target: Tensor, sent: Encoded) -> Tensor:
        """Subtract matrix by matrix, without a second copy of the gradient."""
        for i, row in enumerate(target):
            products, others, rest = self._parts(sent.row(i), sent.n)
            for m, first, second, indices, whole in products:
                rounding = m.lines(row)[indices] - whole
                m.within(row).addmm_(first, second, alpha=-1)
                m.lines(row)[indices] = rounding
            put_columns(take_columns(row, others) - rest, others, row)
        return target

    def _matrices(self, n: int, segments: tuple[Segment, ...]) -> tuple[_Matrix, ...]:
        """The matrices in a row that go as factors."""
        if n and not segments:
            raise ValueError(f"{self.name}: needs to know which parameter lies where (State.segments)")
        return _matrices(tuple(segments), self.config.rank, self.config.lines, self.config.line_scales)

    def _starts(self, matrices: Sequence[_Matrix], rows: Tensor, state: State) -> Tensor:
        """Right factors to begin with, ``[R, sum of short * r]``."""
        size = (rows.shape[0], sum(m.short * m.r for m in matrices))
        kept = state.get("right_factors")
        if kept is not None and kept.shape == size:
            return kept
        return kernels.random(rows).uniform(state.key("right factors"), size[0] * size[1], rows.device).view(size) - 0.5

    def _parts(self, message: Tensor, n: int) -> tuple[list[_Product], Ranges, Tensor]:
        """Read a row's message: its matrices' products, the other columns, and what these hold."""
        reader = _Reader(message)
        count, size = HEAD.unpack(reader.raw(HEAD.size))
        matrices = _described(reader.raw(count * MATRIX_HEAD.size))
        index = (
            reader.take(torch.int32, sum(m.whole for m in matrices))
            .long()
            .split_with_sizes([m.whole for m in matrices])
        )
        exponents = [m.long * m.scaled for m in matrices]
        scales = torch.exp2(reader.take(torch.int8, sum(exponents)).float()).split_with_sizes(exponents)
        shorts = [m.short * m.r for m in matrices]
        rights = reader.take(torch.bfloat16, sum(shorts)).float().split_with_sizes(shorts)
        sizes = [part for m in matrices for part in (m.r * m.long, m.whole * m.short)]
        values = _decoded(self.values, reader.take(torch.uint8, size), sum(sizes))
        parts = torch.split_with_sizes(values, sizes)
        products = []
        for m, which, scale, flat, left, whole in zip(
            matrices, index, scales, rights, parts[::2], parts[1::2], strict=True
        ):
            lengths = scale if m.scaled else left.new_ones(m.long)
            factor, right = left.view(m.r, m.long) * lengths, flat.view(m.short, m.r)
            pair = (factor.t(), right.t()) if m.is_tall else (right, factor)
            products.append(_Product(m, *pair, which, whole.view(m.whole, m.short) * lengths[which, None]))
        others = _others(matrices, n)
        return products, others, _decoded(self.rest, reader.rest(), sum(b - a for a, b in others))


@functools.lru_cache(maxsize=1024)  # units times directions
def _matrices(segments: tuple[Segment, ...], r: int, lines: float, scaled: bool) -> tuple[_Matrix, ...]:
    matrices = []
    for s in segments:
        b = math.prod(s.shape[1:])
        a = (s.stop - s.start) // max(1, b)
        if len(s.shape) > 1 and a * b >= WORTH_FACTORS * r * (a + b) > 0:
            matrices.append(_Matrix(s.start, a, b, r, round(lines * max(a, b)), scaled))
    return tuple(matrices)


@functools.lru_cache(maxsize=1024)
def _described(heads: bytes) -> tuple[_Matrix, ...]:
    return tuple(_Matrix(*fields) for fields in MATRIX_HEAD.iter_unpack(heads))


def _factors(plan: _Plan, row: Tensor, start: Tensor) -> list[_Factors]:
    """The factors of all matrices in a float32 ``row``, from right factors side by side."""
    matrices, longs = plan.matrices, [m.long for m in plan.matrices]
    starts = start.split_with_sizes([m.short * m.r for m in matrices])
    measured = any(m.scaled or m.whole for m in matrices)
    lengths = plan.lengths(row) if measured else row.new_empty(sum(longs))
    exponents = torch.frexp(lengths).exponent.clamp(-126, 127).to(torch.int8)
    scales = torch.exp2(-exponents.float())
    parts = zip(
        matrices,
        starts,
        lengths.split_with_sizes(longs),
        exponents.split_with_sizes(longs),
        scales.split_with_sizes(longs),
        strict=True,
    )
    return [_factor(m, row, v.view(m.short, m.r), _Lines(*lines)) for m, v, *lines in parts]


class _Lines(NamedTuple):
    """A matrix's lines: their lengths, and what brings all to one length; ``[long]`` each."""

    lengths: Tensor
    exponents: Tensor  # int8
    scales: Tensor


def _factor(m: _Matrix, row: Tensor, start: Tensor, of_lines: _Lines) -> _Factors:
    """The factors of the matrix in a float32 ``row``, from ``start`` ``[short, r]``.

    Factors are scaled, not lines: they are much smaller.
    """
    lines = m.lines(row)
    exponents, weights = of_lines.exponents[:0], row.new_ones(m.long)
    if m.scaled:
        exponents, weights = of_lines.exponents, of_lines.scales
    if m.whole:
        index = of_lines.lengths.topk(m.whole).indices.sort().values
        whole = lines[index] * weights[index, None]
        weights[index] = 0
    else:
        index, whole = row.new_empty(0, dtype=torch.int64), row.new_empty(0, m.short)
    columns = weights[:, None]
    turned = times(lines, start) * columns
    right = orthonormal(times(lines.t(), turned / _peak(turned) * columns)).bfloat16()
    rounded = right.float()
    gram = torch.linalg.inv_ex(rounded.t() @ rounded).inverse
    return _Factors(exponents, index, whole, ((times(lines, rounded) * columns) @ gram).t(), right)


def _message(
    matrices: Sequence[_Matrix], factors: Sequence[_Factors], values: Encoded, rest: Encoded, i: int
) -> RaggedRow:
    """Row ``i``: heads, positions, scales and right factors of all matrices, then what the codecs made of the rest."""
    coded = values.row(i)
    heads = HEAD.pack(len(matrices), coded.numel()) + b"".join(MATRIX_HEAD.pack(*m) for m in matrices)
    head = torch.frombuffer(bytearray(heads), dtype=torch.uint8).to(coded.device)
    index = [_bytes(f.indices.int()) for f in factors]
    scales = [_bytes(f.exponents) for f in factors]
    rights = [_bytes(f.right) for f in factors]
    own = ByteCount(*map(size_of, (rights, index, [head, *scales])))
    parts = [head, *index, *scales, *rights, coded, rest.row(i)]
    return RaggedRow(parts, own + values.byte_count(i) + rest.byte_count(i))


def _peak(values: Tensor) -> Tensor:
    peak = values.abs().amax() if values.numel() else values.new_ones(())
    return torch.where(peak > 0, peak, 1)


def _others(matrices: Sequence[_Matrix], n: int) -> Ranges:
    """The columns between the matrices'."""
    return other_columns([(m.start, m.stop) for m in matrices], n)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _decoded(codec: Codec, message: Tensor, n: int) -> Tensor:
    return codec.decode(codec.received(message, n))[0].float()


class _Reader:
    """Takes a message apart from its beginning."""

    def __init__(self, message: Tensor) -> None:
        self._message, self._offset = message, 0

    def take(self, dtype: torch.dtype, count: int) -> Tensor:
        """The next ``count`` numbers, in aligned memory."""
        start, self._offset = self._offset, self._offset + count * dtype.itemsize
        return self._message[start : self._offset].clone().view(dtype)

    def raw(self, size: int) -> bytes:
        return bytes(self.take(torch.uint8, size).cpu().numpy().tobytes())

    def rest(self) -> Tensor:
        return self._message[self._offset :].clone()
