"""Whole numbers times a scale for each row, and perhaps each column, of matrices: the message, entropy coded.

    uint32 matrices; of each: uint32 rows, uint32 columns, bool columns have scales
    float32 the rows' largest scale in each matrix, then the columns'
    the rows' scales, a byte each (`MatrixScaleKernels.encode_scales`), matrix after matrix, then the columns'
    the numbers, int8, in the order of the row's elements

The last two are rANS streams, or stored as they are where that is shorter. A receiver needs nothing else.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.encoded import ByteCount, RaggedRow, size_of
from comm_compress.core.segments import Segment
from comm_compress.kernels import Matrices, Quantiser, Shape
from comm_compress.kernels.tools.scratch import Scratch, apart
from comm_compress.wrappers.entropy import bytes_of, restored, shortened, tensor_of

HEAD = struct.Struct("<I")
SHAPE = struct.Struct("<2I?")
FRONT = HEAD.size + 64 * SHAPE.size  # bytes of a row that are looked at first
LEAST_WIDTH = 16  # of a matrix's rows: narrower ones are joined
WORTH_COLUMNS = 16  # rows: of fewer, columns have no scales of their own
BLOCK = 256  # elements of a row where nobody knows which parameter lies where


class Quantised(NamedTuple):
    """Matrices that are quantised: codes int8 ``[n]``, and their scales as `MatrixScaleKernels.encode` writes them."""

    matrices: Matrices
    codes: Tensor
    octets: Tensor
    peaks: Tensor

    @classmethod
    def of(
        cls,
        x: Tensor,
        matrices: Matrices,
        quantiser: Quantiser,
        scratch: Scratch,
        beside: Tensor | None = None,
        most: Tensor | None = None,
    ) -> Quantised:
        """Quantise ``x`` float32 ``[n]``, in which what codes lose is left if it is kept, in memory of ``scratch``.

        Of a matrix whose scales are not finite, all is lost: NaN. ``beside``, ``most``: as for
        `MatrixScaleKernels.encode`.
        """
        made = cls._in_memory(x.numel(), matrices, scratch, x.device)
        kernels.matrix_scales(x).encode(x, matrices, quantiser, made.codes, made.octets, made.peaks, beside, most)
        return made

    @classmethod
    def of_change(
        cls,
        x: Tensor,
        old: Tensor,
        matrices: Matrices,
        quantiser: Quantiser,
        scratch: Scratch,
        most: Tensor | None = None,
    ) -> Quantised | None:
        """Quantise ``x - old``, float32 ``[n]``, beside ``x``, in memory of ``scratch``; None unless it is finite.

        ``most``: as for `MatrixScaleKernels.encode`.
        """
        made = cls._in_memory(x.numel(), matrices, scratch, x.device)
        written = made.codes, made.octets, made.peaks
        known = kernels.matrix_scales(x).encode_change(x, old, matrices, quantiser, *written, scratch, most)
        return made if known else None

    @classmethod
    def read(cls, message: Tensor, n: int, scratch: Scratch) -> Quantised:
        """What `message` was made of, in memory of ``scratch``."""
        front = bytes_of(message[:FRONT])  # of most rows it has all shapes, and a GPU is asked once
        (count,) = HEAD.unpack_from(front)
        offset = HEAD.size + count * SHAPE.size
        if offset > len(front):
            front = bytes_of(message[:offset])
        matrices = kernels.matrices_of(_shapes(front[HEAD.size : offset]), message.device)
        made = cls._in_memory(n, matrices, scratch, message.device)
        made.peaks.view(torch.uint8).copy_(message[offset : offset + 8 * count])
        offset = restored(message, offset + 8 * count, made.octets, "rans", scratch)
        restored(message, offset, made.codes.view(torch.uint8), "rans", scratch)
        return made

    @classmethod
    def _in_memory(cls, n: int, matrices: Matrices, scratch: Scratch, device: torch.device) -> Quantised:
        codes = scratch("codes", (n,), torch.int8, device)
        octets = scratch("octets", (matrices.num_rows + matrices.num_columns,), torch.uint8, device)
        return cls(matrices, codes, octets, scratch("peaks", (2 * len(matrices.shapes),), torch.float32, device))

    def message(self, scratch: Scratch) -> RaggedRow:
        """The bytes of one row, in parts, some of them in memory of ``scratch``."""
        described = _described(self.matrices.shapes, self.codes.device)
        of_scales = shortened(self.octets, "rans", apart(scratch, "octets"))
        head, *values = shortened(self.codes.view(torch.uint8), "rans", scratch)
        metadata = [described, self.peaks.view(torch.uint8), *of_scales, head]
        return RaggedRow([*metadata, *values], ByteCount(values=size_of(values), metadata=size_of(metadata)))

    def add_to(self, out: Tensor) -> None:
        """Add what it stands for to ``out`` float32 ``[n]``."""
        kernels.matrix_scales(out).add(self.codes, self.octets, self.peaks, out, self.matrices)


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
