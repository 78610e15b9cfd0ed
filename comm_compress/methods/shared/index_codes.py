"""Codes for the positions of the k of n coordinates that were kept.

A code turns ascending distinct indices into bytes and back. The least that any code needs for arbitrary sets is
log2 C(n, k) bits; bits an index for sets drawn at random:

    density k / n     10 %    1/64    1 %     0.1 %
    log2 C(n, k) / k   4.69    7.43    8.08   11.4
    rice               4.76    7.53    8.11   11.5      size depends on the data
    elias_fano         5.13    7.97    8.55   12.0
    bitmap            10      64     100    1000
    packed            ceil(log2 n), int32 32
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from comm_compress import kernels


class IndexCode(ABC):
    """Ascending distinct indices below n as bytes."""

    name: str
    fixed_size: bool = True
    """Is the number of bytes a function of n and k alone?"""

    def size(self, n: int, k: int) -> int:
        """Bytes for k of n, none for none; an upper bound when the data decide."""
        return self._size(n, k) if k else 0

    def encode(self, indices: Tensor, n: int) -> Tensor:
        """Bytes ``[R, size(n, k)]`` for indices int32 ``[R, k]``; R is 1 for a code of variable size."""
        assert self.fixed_size or indices.shape[0] == 1, "rows of variable size are encoded one by one"
        if indices.shape[1] == 0:
            return indices.new_empty(indices.shape, dtype=torch.uint8)
        return self._encode(indices.contiguous(), n)

    def decode(self, coded: Tensor, n: int, k: int) -> Tensor:
        """The indices that `encode` was given, int32 ``[R, k]``."""
        if k == 0:
            return coded.new_empty((coded.shape[0], 0), dtype=torch.int32)
        return self._decode(coded.contiguous(), n, k)

    @abstractmethod
    def _size(self, n: int, k: int) -> int: ...

    @abstractmethod
    def _encode(self, indices: Tensor, n: int) -> Tensor: ...

    @abstractmethod
    def _decode(self, coded: Tensor, n: int, k: int) -> Tensor: ...


class Int32(IndexCode):
    """Every index as it is: 32 bits."""

    name = "int32"

    def _size(self, n: int, k: int) -> int:
        return 4 * k

    def _encode(self, indices: Tensor, n: int) -> Tensor:
        return indices.view(torch.uint8)

    def _decode(self, coded: Tensor, n: int, k: int) -> Tensor:
        return _checked(coded.clone().view(torch.int32), n)


class Packed(IndexCode):
    """Every index in the ceil(log2 n) bits that the largest one needs.

    ``chunk_size``: indices are sent relative to the chunk they lie in, in ceil(log2 chunk_size) bits, when every
    chunk of a row holds the same number of them (SparseLoCo, arXiv 2508.15706): the place in the stream tells
    the chunk. ``per_chunk`` is that number; the last chunk may hold fewer.
    """

    name = "packed"

    def __init__(self, chunk_size: int | None = None, per_chunk: int = 0) -> None:
        self.chunk_size, self.per_chunk = chunk_size, per_chunk

    def _bits(self, n: int) -> int:
        return (max(n if self.chunk_size is None else min(n, self.chunk_size), 1) - 1).bit_length()

    def _size(self, n: int, k: int) -> int:
        return _octets(k * self._bits(n))

    def _encode(self, indices: Tensor, n: int) -> Tensor:
        local = indices if self.chunk_size is None else indices % self.chunk_size
        return _packed(local, self._bits(n))

    def _decode(self, coded: Tensor, n: int, k: int) -> Tensor:
        local = _unpacked(coded, self._bits(n), k)
        if self.chunk_size is not None:
            chunks = torch.arange(k, device=coded.device, dtype=torch.int32) // self.per_chunk
            local = local + chunks * self.chunk_size
        return _checked(local, n)


class Bitmap(IndexCode):
    """One bit for each of the n coordinates: as good as any code near density 1/2, and the best known at 1."""

    name = "bitmap"

    def _size(self, n: int, k: int) -> int:
        return _octets(n)

    def _encode(self, indices: Tensor, n: int) -> Tensor:
        return _marked(indices, self.size(n, indices.shape[1]))

    def _decode(self, coded: Tensor, n: int, k: int) -> Tensor:
        return _checked(kernels.bitmap(coded).marked_bits(coded, k), n)


class EliasFano(IndexCode):
    """Low bits as they are, high bits in unary steps (Elias 1974, Fano 1971): at most log2(n / k) + 2 bits each.

    index_i - i never decreases and is at most n - k. Its lower l bits are packed; its upper part h_i sets bit
    h_i + i of a string of k + ((n - k) >> l) bits. l is the one that makes the sum smallest. The size is a
    function of n and k; about 0.5 bit an index above the least possible for sets drawn at random.
    """

    name = "elias_fano"

    def _size(self, n: int, k: int) -> int:
        low = self._low(n, k)
        return _octets(k + ((n - k) >> low)) + _octets(k * low)

    @staticmethod
    @functools.lru_cache(1 << 12)
    def _low(n: int, k: int) -> int:
        return min(range(31), key=lambda low: _octets(k + ((n - k) >> low)) + _octets(k * low))

    def _encode(self, indices: Tensor, n: int) -> Tensor:
        k = indices.shape[1]
        low = self._low(n, k)
        coded = indices.new_empty((indices.shape[0], self._size(n, k)), dtype=torch.uint8)
        split = _octets(k + ((n - k) >> low))
        kernels.positions(indices).encode(indices, low, False, coded[:, :split], coded[:, split:])
        return coded

    def _decode(self, coded: Tensor, n: int, k: int) -> Tensor:
        low = self._low(n, k)
        split = _octets(k + ((n - k) >> low))
        return _checked(kernels.positions(coded).decode(coded[:, :split], coded[:, split:], low, False, k), n)


class Rice(IndexCode):
    """Gaps between indices in Golomb-Rice codes (Rice 1979): within 0.15 bit of the least for sets drawn at random.

    gap_i = index_i - index_(i-1) - 1 is coded as gap >> b in unary and its lower b bits as they are, with the b
    that makes this row shortest in one byte in front. Unary parts come first, then lower bits. Never longer
    than Elias-Fano by more than that byte; how long depends on the data, so rows differ in length.
    """

    name = "rice"
    fixed_size = False

    def _size(self, n: int, k: int) -> int:
        """At most the bytes of Elias-Fano, and one for b."""
        return EliasFano().size(n, k) + 1

    def _encode(self, indices: Tensor, n: int) -> Tensor:
        """Write b, the unary parts, then the lower bits."""
        k = indices.shape[1]
        low, steps = self._shortest(indices)
        split = 1 + _octets(k + steps)
        coded = indices.new_empty((1, split + _octets(k * low)), dtype=torch.uint8)
        coded[0, 0] = low
        kernels.positions(indices).encode(indices, low, True, coded[:, 1:split], coded[:, split:])
        return coded

    @staticmethod
    def _shortest(indices: Tensor) -> tuple[int, int]:
        """The b that needs the fewest bytes, and the sum of its unary parts; no b beyond twice the mean gap helps."""
        k = indices.shape[1]
        mean_gap = (int(indices[0, -1]) + 1 - k) // k
        steps = kernels.positions(indices).gap_steps(indices, mean_gap.bit_length() + 2)
        low = min(range(len(steps)), key=lambda b: _octets(k + steps[b]) + _octets(k * b))
        return low, steps[low]

    def _decode(self, coded: Tensor, n: int, k: int) -> Tensor:
        """Sum up the gaps; b and k tell where the lower bits begin."""
        low = int(coded[0, 0])
        split = coded.shape[1] - _octets(k * low)
        return _checked(kernels.positions(coded).decode(coded[:, 1:split], coded[:, split:], low, True, k), n)


CODES: dict[str, IndexCode] = {code.name: code for code in (Int32(), Packed(), EliasFano(), Rice(), Bitmap())}


def smallest(n: int, k: int, fixed_size: bool, packed: IndexCode | None = None) -> IndexCode:
    """The code that needs the fewest bytes for k of n.

    ``fixed_size``: only among those whose size n and k determine; otherwise Rice stands in for Elias-Fano, which
    it beats for sets drawn at random. ``packed`` replaces the plain `Packed`.
    """
    varying = CODES["elias_fano" if fixed_size else "rice"]
    return min((varying, packed or CODES["packed"], CODES["bitmap"]), key=lambda code: code.size(n, k))


def _octets(bits: int) -> int:
    return -(-bits // 8)


def _marked(indices: Tensor, octets: int) -> Tensor:
    bitmap = torch.empty(indices.shape[0], octets, dtype=torch.uint8, device=indices.device)
    kernels.bitmap(indices).mark_bits(indices, bitmap)
    return bitmap


def _packed(codes: Tensor, bits: int) -> Tensor:
    packed = torch.empty(codes.shape[0], _octets(codes.shape[1] * bits), dtype=torch.uint8, device=codes.device)
    if packed.numel():
        kernels.bits(codes).pack(codes, bits, packed)
    return packed


def _unpacked(packed: Tensor, bits: int, n: int) -> Tensor:
    if bits == 0 or n == 0:
        return torch.zeros(packed.shape[0], n, dtype=torch.int32, device=packed.device)
    return kernels.bits(packed).unpack(packed.contiguous(), bits, n)


def _checked(indices: Tensor, n: int) -> Tensor:
    """Return the indices if all are below ``n``: a corrupt stream must not be written past a row's end.

    On CUDA the scatter that follows looks itself.
    """
    if indices.device.type == "cpu" and indices.numel():
        low, high = torch.aminmax(indices)
        assert 0 <= int(low) <= int(high) < n, f"an index of {int(low)} or {int(high)} in rows of {n}"
    return indices
