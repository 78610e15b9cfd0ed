"""The message of rows whose matrices go as thin factors; all rows that have the same matrices are read at once.

uint32 matrices, uint32 bytes of the right factors and of the values; of each matrix its six numbers (`Matrix`)
int32   which lines go as they are, matrix after matrix
int8    by which power of two each line was divided
bytes   the right factors [short, r] as their codec made them
bytes   the values as their codec made them: of each matrix the left factor [r, long] and the lines [whole, short]
bytes   the other columns, as their codec made them
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import ByteCount, Encoded, RaggedRow
from comm_compress.core.segments import put_columns, take_columns
from comm_compress.methods.projections.own_matrices import Arrangement, Matrix, arrangement_of, sizes_of
from comm_compress.methods.projections.thin_factors import each_product, subtract_each_product

HEAD = struct.Struct("<3I")  # of a row: how many matrices, bytes of their right factors, of their values
MATRIX_HEAD = struct.Struct("<5IB")


class Codecs(NamedTuple):
    """What carries right factors, values (left factors, and lines that go as they are), and the other columns."""

    rights: Codec
    values: Codec
    rest: Codec


class Factors(NamedTuple):
    """All matrices of R rows, matrix after matrix, as a receiver has them: decoded."""

    indices: Tensor  # int32 [R, sum of whole]
    exponents: Tensor  # int8 [R, sum of long], or empty
    rights: Tensor  # float32 [R, sum of short * r], each orthonormal to its rounding
    values: Tensor  # float32 [R, sum of long * r + whole * short]


class Sent(NamedTuple):
    """What R rows of equal matrices stand for.

    Of each matrix ``products`` has two factors, ``[R, a, k]`` and ``[R, k, b]``, whose product it is but for the lines
    that go as they are: ``whole`` float32 at ``places`` int64 of the rows, ``[R, elements]`` both. ``rest``: what the
    other columns hold.
    """

    arrangement: Arrangement
    products: list[tuple[Tensor, Tensor]]
    places: Tensor
    whole: Tensor
    rest: Tensor

    def write_to(self, rows: Tensor) -> None:
        """Write it to float32 ``rows`` ``[R, n]``."""
        for m, (first, second) in zip(self.arrangement.matrices, self.products, strict=True):
            each_product(first, second, m.within(rows))
        rows.scatter_(1, self.places, self.whole)
        put_columns(self.rest, self.arrangement.plan.others, rows)

    def subtract_from(self, rows: Tensor) -> None:
        """Subtract it from float32 ``rows`` ``[R, n]``, without a second copy of them."""
        rounding = rows.gather(1, self.places).sub_(self.whole)
        for m, (first, second) in zip(self.arrangement.matrices, self.products, strict=True):
            subtract_each_product(m.within(rows), first, second)
        rows.scatter_(1, self.places, rounding)
        put_columns(take_columns(rows, self.arrangement.plan.others) - self.rest, self.arrangement.plan.others, rows)


def written(
    matrices: tuple[Matrix, ...], indices: Tensor, exponents: Tensor, rights: Encoded, values: Encoded, rest: Encoded
) -> list[RaggedRow]:
    """The messages of all rows: heads, places and scales (as `Factors` has them), then what the codecs made."""
    index, scales = _bytes(indices), _bytes(exponents)
    made = []
    for i in range(indices.shape[0]):
        right, coded = rights.row(i), values.row(i)
        head = _head(matrices, right.numel(), coded.numel(), coded.device)
        own = ByteCount(0, index.shape[1], head.numel() + scales.shape[1])
        parts = [head, index[i], scales[i], right, coded, rest.row(i)]
        made.append(RaggedRow(parts, own + rights.byte_count(i) + values.byte_count(i) + rest.byte_count(i)))
    return made


def read(encoded: Encoded, codecs: Codecs) -> Iterator[tuple[slice, Sent]]:
    """What the messages stand for, all rows at once where they are of the same matrices, else one by one."""
    heads = [_head_of(encoded.row(i)) for i in range(encoded.num_rows)]
    alike = len(set(heads)) == 1 and len(set(encoded.lengths or ())) == 1
    for rows in [slice(0, encoded.num_rows)] if alike else [slice(i, i + 1) for i in range(encoded.num_rows)]:
        message = encoded.buffer[rows, : encoded.row(rows.start).numel()]
        yield rows, _parts(message, encoded.n, heads[rows.start], codecs)


def stands_for(arrangement: Arrangement, factors: Factors, rest: Tensor, places: Tensor | None = None) -> Sent:
    """What factors stand for at a receiver, with float32 ``rest`` in the other columns.

    ``places``: as `Sent` has them, where they are known.
    """
    sizes, index, lines = sizes_of(arrangement.matrices), factors.indices.long(), arrangement.whole
    values, rights = factors.values, factors.rights.split_with_sizes(sizes.right, 1)
    if factors.exponents.numel():
        values = kernels.factors(values).spread(values, lines, index, factors.exponents)
    parts, products = values.split_with_sizes(sizes.values, 1), []
    for m, left, right in zip(arrangement.matrices, parts[::2], rights, strict=True):
        u, v = left.view(-1, m.r, m.long), right.view(-1, m.short, m.r)
        products.append((u.mT, v.mT) if m.is_tall else (v, u))
    where = kernels.factors(values).places(lines, index) if places is None else places
    whole = torch.cat(parts[1::2], 1) if lines.num_elements else values[:, :0]
    return Sent(arrangement, products, where, whole, rest)


def _parts(messages: Tensor, n: int, head: _Head, codecs: Codecs) -> Sent:
    """Read messages uint8 ``[R, m]`` that have the same head."""
    arrangement, sizes = arrangement_of(n, head.matrices, messages.device), sizes_of(head.matrices)
    reader = _Reader(messages, HEAD.size + len(head.matrices) * MATRIX_HEAD.size)
    factors = Factors(
        reader.take(torch.int32, sum(sizes.whole)),
        reader.take(torch.int8, sum(sizes.exponents)),
        decoded(codecs.rights, reader.take(torch.uint8, head.rights), sum(sizes.right)),
        decoded(codecs.values, reader.take(torch.uint8, head.values), sum(sizes.values)),
    )
    rest = decoded(codecs.rest, reader.rest(), sum(b - a for a, b in arrangement.plan.others))
    return stands_for(arrangement, factors, rest)


def decoded(codec: Codec, messages: Tensor, n: int) -> Tensor:
    """The rows float32 ``[R, n]`` that messages uint8 ``[R, m]``, aligned and contiguous, stand for."""
    if codec.fixed_size:
        return codec.decode(Encoded(messages, codec.layout(n, torch.float32), n)).float()
    lengths = (messages.shape[1],) * messages.shape[0]
    return codec.decode(Encoded(messages, None, n, lengths=lengths)).float()


class _Head(NamedTuple):
    """What a message says first: its matrices, and how many bytes their right factors and values have."""

    matrices: tuple[Matrix, ...]
    rights: int
    values: int


@functools.lru_cache(maxsize=1024)
def _head(matrices: tuple[Matrix, ...], rights: int, values: int, device: torch.device) -> Tensor:
    heads = HEAD.pack(len(matrices), rights, values) + b"".join(MATRIX_HEAD.pack(*m) for m in matrices)
    return torch.frombuffer(bytearray(heads), dtype=torch.uint8).to(device)


def _head_of(message: Tensor) -> _Head:
    count, rights, values = HEAD.unpack(_raw(message, 0, HEAD.size))
    return _Head(_described(_raw(message, HEAD.size, count * MATRIX_HEAD.size)), rights, values)


def _raw(message: Tensor, start: int, size: int) -> bytes:
    return bytes(message[start : start + size].cpu().numpy().tobytes())


@functools.lru_cache(maxsize=1024)
def _described(heads: bytes) -> tuple[Matrix, ...]:
    return tuple(Matrix(*fields) for fields in MATRIX_HEAD.iter_unpack(heads))


def _bytes(tensor: Tensor) -> Tensor:
    """uint8 ``[R, bytes of a row]``."""
    if tensor.numel() == 0:
        return tensor.new_empty(tensor.shape[0], 0, dtype=torch.uint8)
    return tensor.contiguous().view(torch.uint8)


class _Reader:
    """Takes messages uint8 ``[R, m]`` apart, from ``offset`` on."""

    def __init__(self, messages: Tensor, offset: int) -> None:
        self._messages, self._offset = messages, offset

    def take(self, dtype: torch.dtype, count: int) -> Tensor:
        """The next ``count`` numbers of each, in aligned memory: ``[R, count]``."""
        start, self._offset = self._offset, self._offset + count * dtype.itemsize
        if count == 0:
            return self._messages.new_empty(self._messages.shape[0], 0, dtype=dtype)
        return self._messages[:, start : self._offset].clone(memory_format=torch.contiguous_format).view(dtype)

    def rest(self) -> Tensor:
        """All that is left of each."""
        return self.take(torch.uint8, self._messages.shape[1] - self._offset)
