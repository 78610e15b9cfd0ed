"""Whole numbers times a scale for each row, and perhaps each column, of matrices: the message, entropy coded.

    uint32 matrices; of each: uint32 rows, uint32 columns, bool columns have scales
    float32 the rows' largest scale in each matrix, then the columns'
    the rows' scales, a byte each (`MatrixScaleKernels.encode_scales`), matrix after matrix, then the columns'
    the numbers, int8, in the order of the row's elements

The last two are rANS streams, or stored as they are where that is shorter. A receiver needs nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.encoded import ByteCount, RaggedRow, size_of
from comm_compress.core.segments import Segment
from comm_compress.kernels import Matrices, Shape
from comm_compress.kernels.common.matrix_scales import NOTHING
from comm_compress.kernels.common.scratch import Scratch
from comm_compress.wrappers.entropy import bytes_of, restored, shortened, tensor_of

HEAD = struct.Struct("<I")
SHAPE = struct.Struct("<2I?")
LEAST_WIDTH = 16  # of a matrix's rows: narrower ones are joined
WORTH_COLUMNS = 16  # rows: of fewer, columns have no scales of their own
BLOCK = 256  # elements of a row where nobody knows which parameter lies where


@dataclass(frozen=True)
class Scales:
    """The scales of all matrices' rows, and of those columns that have some: a byte each, below the matrix's largest.

    ``row_bytes``, ``column_bytes`` uint8 ``[rows]``, ``[columns]``; ``row_peaks``, ``column_peaks`` float32
    ``[matrices]``.
    """

    matrices: Matrices
    row_bytes: Tensor
    row_peaks: Tensor
    column_bytes: Tensor
    column_peaks: Tensor

    @classmethod
    def of_rows(cls, mean_squares: Tensor, matrices: Matrices) -> Scales:
        """The scales of rows with these mean squares, float64 ``[rows]``; those of columns are zero."""
        rows, row_peaks = kernels.matrix_scales(mean_squares).encode_scales(mean_squares, matrices.heights)
        columns = rows.new_full((matrices.num_columns,), NOTHING)
        return cls(matrices, rows, row_peaks, columns, torch.zeros_like(row_peaks))

    def with_columns(self, mean_squares: Tensor) -> Scales:
        """These scales, with those of columns that have these mean squares, float64 ``[columns]``."""
        columns, peaks = kernels.matrix_scales(mean_squares).encode_scales(mean_squares, self.matrices.widths)
        return dataclasses.replace(self, column_bytes=columns, column_peaks=peaks)

    def times(self, factor: float) -> Scales:
        """These scales, with the rows' times ``factor``."""
        return dataclasses.replace(self, row_peaks=self.row_peaks * factor)

    def rows(self) -> Tensor:
        """The rows' scales, float32 ``[rows]``."""
        decode = kernels.matrix_scales(self.row_bytes).decode_scales
        return decode(self.row_bytes, self.matrices.heights, self.row_peaks)

    def columns(self) -> Tensor:
        """The columns' scales, float32 ``[columns]``, then ones for matrices whose columns have none."""
        decode = kernels.matrix_scales(self.column_bytes).decode_scales
        return torch.cat([decode(self.column_bytes, self.matrices.widths, self.column_peaks), self.matrices.ones])


@functools.lru_cache(maxsize=1024)  # as `kernels.matrices_of`
def matrices_of_row(n: int, segments: tuple[Segment, ...], columns: bool, device: torch.device) -> Matrices:
    """The matrices that the ``n`` elements of a row make up: one for each parameter's shard, else rows of 256.

    ``columns``: do those of matrices of some height have scales of their own?
    """
    shapes, column = list[Shape](), 0
    for s in segments:
        shapes += _blocks(s.start - column, columns)
        if s.stop > s.start:
            width = _width(s)
            shapes.append(_shape((s.stop - s.start) // width, width, columns))
        column = s.stop
    shapes += _blocks(n - column, columns)
    return kernels.matrices_of(tuple(shapes), device)


def quantised(x: Tensor, scales: Scales, dead_zone: float, scratch: Scratch) -> Tensor:
    """The codes int8 ``[n]`` of ``x`` float32 ``[n]``, in which what they lose is left; in memory of ``scratch``.

    Of a matrix whose scales are not finite, all is lost: NaN.
    """
    codes = scratch("codes", tuple(x.shape), torch.int8, x.device)
    kernels.matrix_scales(x).quantise(x, scales.rows(), scales.columns(), dead_zone, codes, scales.matrices)
    return codes


def message_of(scales: Scales, codes: Tensor, scratch: Scratch) -> RaggedRow:
    """The bytes of one row with these ``codes`` int8 ``[n]``, in parts, some of them in memory of ``scratch``."""
    peaks = torch.cat([scales.row_peaks, scales.column_peaks]).view(torch.uint8)
    octets = torch.cat([scales.row_bytes, scales.column_bytes])
    metadata = [_described(scales.matrices.shapes, codes.device), peaks, *shortened(octets, "rans")]
    head, *values = shortened(codes.view(torch.uint8), "rans", scratch)
    metadata.append(head)
    return RaggedRow([*metadata, *values], ByteCount(values=size_of(values), metadata=size_of(metadata)))


def add_message(message: Tensor, out: Tensor, scratch: Scratch) -> None:
    """Add what a message stands for to ``out`` float32 ``[n]``; what is needed meanwhile lies in ``scratch``."""
    (count,) = HEAD.unpack(bytes_of(message[: HEAD.size]))
    offset = HEAD.size + count * SHAPE.size
    matrices = kernels.matrices_of(_shapes(bytes_of(message[HEAD.size : offset])), message.device)
    peaks = message[offset : offset + 8 * count].clone().view(torch.float32)  # the clone is aligned
    octets = message.new_empty(matrices.num_rows + matrices.num_columns)
    codes = scratch("codes", tuple(out.shape), torch.int8, out.device)
    offset = restored(message, offset + 8 * count, octets, "rans")
    restored(message, offset, codes.view(torch.uint8), "rans", scratch)
    rows, columns = torch.split_with_sizes(octets, [matrices.num_rows, matrices.num_columns])
    scales = Scales(matrices, rows, peaks[:count], columns, peaks[count:])
    kernels.matrix_scales(out).add_decoded(codes, scales.rows(), scales.columns(), out, matrices)


@functools.lru_cache(maxsize=1024)
def _described(shapes: tuple[Shape, ...], device: torch.device) -> Tensor:
    return tensor_of(HEAD.pack(len(shapes)) + b"".join(SHAPE.pack(*shape) for shape in shapes), device)


@functools.lru_cache(maxsize=1024)
def _shapes(described: bytes) -> tuple[Shape, ...]:
    return tuple(Shape(*fields) for fields in SHAPE.iter_unpack(described))


def _shape(a: int, b: int, columns: bool) -> Shape:
    return Shape(a, b, columns and a >= WORTH_COLUMNS)


def _width(segment: Segment) -> int:
    """Elements of a row: the last dimension's, with others before it where that is narrow; a vector is one row."""
    width = 1
    for length in reversed(segment.shape[1:]):
        width *= length
        if width >= LEAST_WIDTH:
            return width
    return segment.stop - segment.start


def _blocks(n: int, columns: bool) -> Iterator[Shape]:
    whole, rest = divmod(n, BLOCK)
    if whole:
        yield _shape(whole, BLOCK, columns)
    if rest:
        yield Shape(1, rest, columns=False)
