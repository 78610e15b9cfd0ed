"""The message of rows whose matrices go as thin factors; all rows that have the same matrices are read at once.

uint32 matrices, uint32 bytes of the values; of each matrix its six numbers (`Matrix`)
int32   which lines go as they are, matrix after matrix
int8    by which power of two each line was divided
bf16    the right factors, [short, r]
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
from comm_compress.kernels.common.factors import elements
from comm_compress.methods.projections.own_matrices import Arrangement, Matrix, arrangement_of, sizes_of
from comm_compress.methods.projections.thin_factors import each_product, subtract_each_product

HEAD = struct.Struct("<2I")  # of a row: how many matrices, bytes of their values
MATRIX_HEAD = struct.Struct("<5IB")


class Factors(NamedTuple):
    """All matrices of R rows on their way, matrix after matrix."""

    indices: Tensor  # int32 [R, sum of whole]
    exponents: Tensor  # int8 [R, sum of long], or empty
    rights: Tensor  # bfloat16 [R, sum of short * r], each orthonormal to its rounding
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
        put_columns(self.rest, self.arrangement.others, rows)

    def subtract_from(self, rows: Tensor) -> None:
        """Subtract it from float32 ``rows`` ``[R, n]``, without a second copy of them."""
        rounding = rows.gather(1, self.places).sub_(self.whole)
        for m, (first, second) in zip(self.arrangement.matrices, self.products, strict=True):
            subtract_each_product(m.within(rows), first, second)
        rows.scatter_(1, self.places, rounding)
        put_columns(take_columns(rows, self.arrangement.others) - self.rest, self.arrangement.others, rows)


def written(matrices: tuple[Matrix, ...], factors: Factors, values: Encoded, rest: Encoded) -> list[RaggedRow]:
    """The messages of all rows: heads, places, scales and right factors, then what the codecs made of the rest."""
    index, scales, rights = (_bytes(part) for part in factors[:3])
    made = []
    for i in range(rights.shape[0]):
        coded = values.row(i)
        head = _head(matrices, coded.numel(), coded.device)
        own = ByteCount(rights.shape[1], index.shape[1], head.numel() + scales.shape[1])
        parts = [head, index[i], scales[i], rights[i], coded, rest.row(i)]
        made.append(RaggedRow(parts, own + values.byte_count(i) + rest.byte_count(i)))
    return made


def read(encoded: Encoded, values: Codec, rest: Codec) -> Iterator[tuple[slice, Sent]]:
    """What the messages stand for, all rows at once where they are of the same matrices, else one by one."""
    heads = [_matrices_and_size(encoded.row(i)) for i in range(encoded.num_rows)]
    alike = len(set(heads)) == 1 and len(set(encoded.lengths or ())) == 1
    for rows in [slice(0, encoded.num_rows)] if alike else [slice(i, i + 1) for i in range(encoded.num_rows)]:
        message = encoded.buffer[rows, : encoded.row(rows.start).numel()]
        yield rows, _parts(message, encoded.n, *heads[rows.start], values, rest)


def stands_for(
    arrangement: Arrangement,
    factors: Factors,
    rights: Tensor,
    values: Tensor,
    rest: Tensor,
    places: Tensor | None = None,
) -> Sent:
    """What factors stand for at a receiver: the ``rights`` in float32, and what the codecs decode.

    ``places``: as `Sent` has them, where they are known.
    """
    sizes, index = sizes_of(arrangement.matrices), factors.indices.long()
    if factors.exponents.numel():
        values = kernels.factors(values).spread(values, arrangement.whole, index, factors.exponents)
    lefts, of_rights = values.split_with_sizes(sizes.values, 1)[::2], rights.split_with_sizes(sizes.right, 1)
    products = []
    for m, left, right in zip(arrangement.matrices, lefts, of_rights, strict=True):
        u, v = left.view(-1, m.r, m.long), right.view(-1, m.short, m.r)
        products.append((u.mT, v.mT) if m.is_tall else (v, u))
    where = elements(arrangement.whole, index) if places is None else places
    return Sent(arrangement, products, where, values.index_select(1, arrangement.whole.in_values), rest)


def _parts(messages: Tensor, n: int, matrices: tuple[Matrix, ...], size: int, values: Codec, rest: Codec) -> Sent:
    """Read messages uint8 ``[R, m]`` of the same matrices, whose values have ``size`` bytes."""
    arrangement, sizes = arrangement_of(n, matrices, messages.device), sizes_of(matrices)
    reader = _Reader(messages, HEAD.size + len(matrices) * MATRIX_HEAD.size)
    factors = Factors(
        reader.take(torch.int32, sum(sizes.whole)),
        reader.take(torch.int8, sum(sizes.exponents)),
        reader.take(torch.bfloat16, sum(sizes.right)),
        decoded(values, reader.take(torch.uint8, size), sum(sizes.values)),
    )
    others = decoded(rest, reader.rest(), sum(b - a for a, b in arrangement.others))
    return stands_for(arrangement, factors, factors.rights.float(), factors.values, others)


def decoded(codec: Codec, messages: Tensor, n: int) -> Tensor:
    """The rows float32 ``[R, n]`` that messages uint8 ``[R, m]``, aligned and contiguous, stand for."""
    if codec.fixed_size:
        return codec.decode(Encoded(messages, codec.layout(n, torch.float32), n)).float()
    lengths = (messages.shape[1],) * messages.shape[0]
    return codec.decode(Encoded(messages, None, n, lengths=lengths)).float()


@functools.lru_cache(maxsize=1024)
def _head(matrices: tuple[Matrix, ...], size: int, device: torch.device) -> Tensor:
    heads = HEAD.pack(len(matrices), size) + b"".join(MATRIX_HEAD.pack(*m) for m in matrices)
    return torch.frombuffer(bytearray(heads), dtype=torch.uint8).to(device)


def _matrices_and_size(message: Tensor) -> tuple[tuple[Matrix, ...], int]:
    """Which matrices a message has, and how many bytes their values."""
    count, size = HEAD.unpack(_raw(message, 0, HEAD.size))
    return _described(_raw(message, HEAD.size, count * MATRIX_HEAD.size)), size


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
