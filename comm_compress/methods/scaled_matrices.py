"""Whole numbers times a scale for each row, and perhaps each column, of matrices: the message, entropy coded.

    uint32 matrices; of each: uint32 rows, uint32 columns, bool columns have scales, float32 largest scales
    the scales, a byte each (`kernels.lines_reference`), matrix after matrix
    the numbers, int8, in the order of the row's elements

The last two are rANS streams, or stored as they are where that is shorter. A receiver needs nothing else.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.encoded import ByteCount
from comm_compress.entropy import restored, shortened, tensor_of
from comm_compress.segments import Segment

HEAD = struct.Struct("<I")
MATRIX_HEAD = struct.Struct("<2I?2f")
LEAST_WIDTH = 16  # of a matrix's rows: narrower ones are joined
BLOCK = 256  # elements of a row where nobody knows which parameter lies where


class Matrix(NamedTuple):
    """Elements ``start`` on of a row as ``[a, b]``."""

    start: int
    a: int
    b: int

    def of(self, row: Tensor) -> Tensor:
        """A view."""
        return row[self.start : self.start + self.a * self.b].view(self.a, self.b)


class Scales(NamedTuple):
    """Of one matrix: bytes of its rows' ``[a]`` and columns' scales (``[b]`` or, where they have none, ``[0]``).

    ``row_peak``, ``column_peak``: float32 scalars, the largest of each.
    """

    rows: Tensor
    row_peak: Tensor
    columns: Tensor
    column_peak: Tensor

    @classmethod
    def of_rows(cls, energies: Tensor) -> Scales:
        """For rows of these mean squares (float64 ``[a]``), the columns without."""
        rows, peak = kernels.line_bytes(energies)
        return cls(rows, peak, rows[:0], torch.ones_like(peak))

    @property
    def are_finite(self) -> bool:
        """Do they stand for numbers?"""
        return math.isfinite(self.row_peak.item()) and math.isfinite(self.column_peak.item())

    def times(self, factor: float) -> Scales:
        """The rows' times ``factor``."""
        return self._replace(row_peak=self.row_peak * factor)

    def expanded(self, width: int) -> tuple[Tensor, Tensor]:
        """float32 ``[a]`` and ``[width]``."""
        rows = kernels.line_scales(self.rows, self.row_peak)
        if not self.columns.numel():
            return rows, rows.new_ones(width)
        return rows, kernels.line_scales(self.columns, self.column_peak)


def matrices_of(n: int, segments: Sequence[Segment]) -> Iterator[Matrix]:
    """What all ``n`` elements of a row make up, in order: a matrix for each parameter's shard, else rows of 256."""
    place = 0
    for s in segments:
        yield from _blocks(place, s.start)
        if s.stop > s.start:
            width = _width(s)
            yield Matrix(s.start, (s.stop - s.start) // width, width)
        place = s.stop
    yield from _blocks(place, n)


def quantised(x: Tensor, scales: Scales, dead_zone: float, codes: Tensor) -> None:
    """Write ``codes`` int8 ``[a, b]`` of ``x`` float32 ``[a, b]``, and leave in ``x`` what they lose.

    With a scale that is not finite, all of the matrix is lost: NaN.
    """
    if scales.are_finite:
        kernels.quantise_lines(x, *scales.expanded(x.shape[1]), dead_zone, codes)
    else:
        codes.zero_()
        x.fill_(torch.nan)


def message_of(matrices: Sequence[Matrix], scales: Sequence[Scales], codes: Tensor) -> tuple[Tensor, ByteCount]:
    """The bytes of one row with these ``codes`` int8 ``[n]``."""
    heads = [HEAD.pack(len(matrices))]
    for m, s in zip(matrices, scales, strict=True):
        heads.append(MATRIX_HEAD.pack(m.a, m.b, s.columns.numel() > 0, s.row_peak.item(), s.column_peak.item()))
    octets = torch.cat([codes.new_empty(0, dtype=torch.uint8), *(part for s in scales for part in (s.rows, s.columns))])
    metadata = [tensor_of(b"".join(heads)), *shortened(octets.cpu(), "rans")]
    head, values = shortened(codes.view(torch.uint8).cpu(), "rans")
    message = torch.cat([*metadata, head, values]).to(codes.device)
    return message, ByteCount(values=values.numel(), metadata=message.numel() - values.numel())


def add_message(message: Tensor, out: Tensor) -> None:
    """Add what a message stands for to ``out`` float32 ``[n]``."""
    device, message = message.device, message.cpu()
    (count,) = HEAD.unpack(message[: HEAD.size].numpy().tobytes())
    place, start = HEAD.size + count * MATRIX_HEAD.size, 0
    heads = list(MATRIX_HEAD.iter_unpack(message[HEAD.size : place].numpy().tobytes()))
    sizes = [size for a, b, columns, *_ in heads for size in (a, b * columns)]
    octets, place = restored(message, place, sum(sizes), "rans")
    codes = restored(message, place, out.numel(), "rans")[0].to(device).view(torch.int8)
    parts = iter(torch.split_with_sizes(octets.to(device), sizes))
    for a, b, _, *largest in heads:
        peaks = torch.tensor(largest, device=device)
        scales, matrix = Scales(next(parts), peaks[0], next(parts), peaks[1]), Matrix(start, a, b)
        kernels.add_lines(matrix.of(codes), *scales.expanded(b), matrix.of(out))
        start += a * b


def _width(segment: Segment) -> int:
    """Elements of a row: the last dimension's, with others before it where that is narrow; a vector is one row."""
    width = 1
    for length in reversed(segment.shape[1:]):
        width *= length
        if width >= LEAST_WIDTH:
            return width
    return segment.stop - segment.start


def _blocks(start: int, stop: int) -> Iterator[Matrix]:
    whole, rest = divmod(stop - start, BLOCK)
    if whole:
        yield Matrix(start, whole, BLOCK)
    if rest:
        yield Matrix(stop - rest, 1, rest)
