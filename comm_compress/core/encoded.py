"""Rows of bytes: what a compressor puts on the wire, field by field."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from comm_compress.kernels.tools.scratch import Scratch, fresh

Kind = Literal["values", "indices", "metadata"]


class Field(NamedTuple):
    """One array inside an encoded row: ``size`` items of ``dtype``, charged to ``kind`` in the ledger."""

    name: str
    dtype: torch.dtype
    size: int
    kind: Kind


class ByteCount(NamedTuple):
    """Bytes by what they are made of. Alignment padding counts as metadata."""

    values: int = 0
    indices: int = 0
    metadata: int = 0

    @property
    def total(self) -> int:
        """The bytes of all three kinds together."""
        return self.values + self.indices + self.metadata

    def __add__(self, other: object) -> ByteCount:  # a sum, not a longer tuple
        assert isinstance(other, ByteCount)
        return ByteCount(self.values + other.values, self.indices + other.indices, self.metadata + other.metadata)

    def times(self, factor: int) -> ByteCount:
        """Return ``factor`` times as many bytes of each kind."""
        return ByteCount(self.values * factor, self.indices * factor, self.metadata * factor)


def size_of(parts: Iterable[Tensor]) -> int:
    """Return how many bytes these uint8 vectors have together."""
    return sum(part.numel() for part in parts)


class RaggedRow(NamedTuple):
    """A row that needs nothing else to be decoded, of any length: uint8 vectors that make it up, and what they are.

    Only who sends it knows its ``byte_count``.
    """

    parts: Sequence[Tensor]
    byte_count: ByteCount | None = None


class Layout:
    """A layout says where each field of one encoded row lies.

    Fields are placed in the order given, widest item first if the caller wants no gaps; each starts
    at a multiple of its item size and a row's length is a multiple of the widest, so that every field
    of every row of a contiguous buffer can be viewed in its own dtype without a copy.
    """

    def __init__(self, *fields: Field) -> None:
        self.fields = {f.name: f for f in fields}
        assert len(self.fields) == len(fields), "field names are distinct"
        self.offsets: dict[str, int] = {}
        end, widest = 0, 1
        for f in fields:
            start = math.ceil(end / f.dtype.itemsize) * f.dtype.itemsize
            self.offsets[f.name] = start
            end = start + f.size * f.dtype.itemsize
            widest = max(widest, f.dtype.itemsize if f.size else 1)
        self.row_bytes = math.ceil(end / widest) * widest
        self.padding = self.row_bytes - sum(f.size * f.dtype.itemsize for f in fields)

    @functools.cached_property
    def byte_count(self) -> ByteCount:
        """The bytes of one row, by kind."""
        by_kind = {"values": 0, "indices": 0, "metadata": self.padding}
        for f in self.fields.values():
            by_kind[f.kind] += f.size * f.dtype.itemsize
        return ByteCount(**by_kind)


@dataclass(frozen=True)
class Encoded:
    """R encoded rows, byte for byte as they travel.

    ``buffer``: uint8 ``[R, m]``, contiguous. Rows of equal length are described by ``layout``. A method
    whose rows differ in length (see `ragged`) gives ``lengths`` instead: row r is the first
    ``lengths[r]`` bytes of ``buffer[r]``, describes itself, and ``counts[r]`` says what it is made of
    (on the sending side; a receiver has no counts).
    ``n``: how many elements each row decodes to.
    ``agreed``: small tensors that all ranks already share (a scale from an all-reduce); they are needed
    to decode but do not travel with the rows.
    ``scratch``: where decoding may take its memory from.
    """

    buffer: Tensor
    layout: Layout | None
    n: int
    agreed: Mapping[str, Tensor] = field(default_factory=dict)
    lengths: tuple[int, ...] | None = None
    counts: tuple[ByteCount, ...] | None = None
    scratch: Scratch = field(default=fresh, repr=False)

    def __post_init__(self) -> None:
        assert self.buffer.dtype == torch.uint8
        assert self.buffer.dim() == 2
        assert self.buffer.is_contiguous()
        assert (self.layout is None) == (self.lengths is not None), "a layout or lengths"
        assert self.layout is None or self.buffer.shape[1] == self.layout.row_bytes
        assert self.lengths is None or len(self.lengths) == self.buffer.shape[0]

    @classmethod
    def empty(cls, num_rows: int, n: int, layout: Layout, device: torch.device) -> Encoded:
        """Return rows to be filled through ``encoded["field"]`` views. Padding is zero: equal input, equal bytes."""
        return cls.within(torch.empty(num_rows, layout.row_bytes, dtype=torch.uint8, device=device), layout, n)

    @classmethod
    def within(cls, buffer: Tensor, layout: Layout, n: int) -> Encoded:
        """Return rows to be filled, as `empty` does, in ``buffer`` (uint8 ``[R, layout.row_bytes]``)."""
        if layout.padding:
            buffer.zero_()
        return cls(buffer, layout, n)

    @classmethod
    def ragged(cls, rows: Sequence[RaggedRow], n: int, scratch: Scratch = fresh) -> Encoded:
        """Rows of different lengths, each joined from its parts, in memory of ``scratch``. Beyond a row all is zero."""
        lengths = tuple(size_of(row.parts) for row in rows)
        counts = tuple(row.byte_count for row in rows if row.byte_count is not None)
        assert not counts or tuple(count.total for count in counts) == lengths
        buffer = scratch("ragged", (len(rows), max(lengths)), torch.uint8, rows[0].parts[0].device)
        for out, row, length in zip(buffer, rows, lengths, strict=True):
            torch.cat(list(row.parts), out=out[:length])
            if length < buffer.shape[1]:
                out[length:] = 0
        return cls(buffer, None, n, lengths=lengths, counts=counts or None, scratch=scratch)

    def __getitem__(self, name: str) -> Tensor:
        """A ``[R, count]`` view of one field in its own dtype; writing to it writes the wire's bytes."""
        assert self.layout is not None, "ragged rows have no common fields"
        f, start = self.layout.fields[name], self.layout.offsets[name]
        if f.size == 0:
            return self.buffer.new_empty((self.num_rows, 0), dtype=f.dtype)
        return self.buffer[:, start : start + f.size * f.dtype.itemsize].view(f.dtype)

    @property
    def num_rows(self) -> int:
        """How many rows there are (R)."""
        return self.buffer.shape[0]

    def row(self, index: int) -> Tensor:
        """Return the bytes of one row as they travel."""
        return self.buffer[index] if self.lengths is None else self.buffer[index, : self.lengths[index]]

    def byte_count(self, index: int) -> ByteCount:
        """Return the bytes of one row, by kind."""
        if self.layout is not None:
            return self.layout.byte_count
        assert self.counts is not None, "only a sender knows what its ragged rows are made of"
        return self.counts[index]

    def replaced(self, buffer: Tensor) -> Encoded:
        """Return rows of this layout in another buffer: those that came back from a collective."""
        assert self.layout is not None
        return Encoded(buffer, self.layout, self.n, self.agreed, scratch=self.scratch)
