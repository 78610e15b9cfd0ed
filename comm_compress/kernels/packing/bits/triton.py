"""Bit streams of codes of one width as Triton kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.tools.triton.launching import TILE, launch, row_stride


def pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    num_rows, n = codes.shape
    grid = (triton.cdiv(packed.shape[1], TILE), num_rows)
    strides = row_stride(codes), row_stride(packed)
    launch(_pack, grid, codes, packed, n, packed.shape[1], *strides, BITS=bits, TILE=TILE)


def unpack(packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.int32) -> Tensor:
    codes = torch.empty(packed.shape[0], n, dtype=dtype, device=packed.device)
    strides = row_stride(packed), row_stride(codes)
    launch(_unpack, (triton.cdiv(n, TILE), codes.shape[0]), packed, codes, n, *strides, BITS=bits, TILE=TILE)
    return codes


@triton.jit
def _pack(codes, packed, n, num_bytes, code_stride, byte_stride, BITS: tl.constexpr, TILE: tl.constexpr):
    """One byte an element of the tile: every code that reaches into it, shifted to its place."""
    codes += tl.program_id(1).to(tl.int64) * code_stride
    packed += tl.program_id(1).to(tl.int64) * byte_stride
    byte = tl.program_id(0) * TILE + tl.arange(0, TILE)
    bit = byte % BITS * 8  # of the stream of 8 codes, BITS bytes, that the byte lies in
    first = byte // BITS * 8 + bit // BITS
    octet = tl.zeros([TILE], tl.int32)
    for j in tl.static_range(8 // BITS if 8 % BITS == 0 else (6 + BITS) // BITS + 1):
        code = tl.load(codes + first + j, mask=first + j < n, other=0).to(tl.int32) & ((1 << BITS) - 1)
        place = (bit // BITS + j) * BITS - bit  # of the code's lowest bit, from the byte's
        octet |= tl.where(place < 0, code >> tl.maximum(-place, 0), code << tl.minimum(tl.maximum(place, 0), 8))
    tl.store(packed + byte, octet.to(tl.uint8), mask=byte < num_bytes)


@triton.jit
def _unpack(packed, codes, n, byte_stride, code_stride, BITS: tl.constexpr, TILE: tl.constexpr):
    packed += tl.program_id(1).to(tl.int64) * byte_stride
    codes += tl.program_id(1).to(tl.int64) * code_stride
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(codes + i, code_at(packed, i, i < n, BITS).to(codes.dtype.element_ty), mask=i < n)


@triton.jit
def code_at(packed, i, mask, BITS: tl.constexpr):
    """int32: the unsigned codes number ``i`` of the bit stream at ``packed``, 0 where masked."""
    bit = i % 8 * BITS
    first = i // 8 * BITS + bit // 8
    bit = bit % 8
    word = tl.load(packed + first, mask=mask, other=0).to(tl.int64)
    if 8 % BITS != 0:
        for j in tl.static_range(1, (BITS + 14) // 8):
            more = mask & (8 * j < bit + BITS)
            word |= tl.load(packed + first + j, mask=more, other=0).to(tl.int64) << (8 * j)
    return (word >> bit).to(tl.int32) & ((1 << BITS) - 1)
