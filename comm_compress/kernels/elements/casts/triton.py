"""Narrower floats, whole numbers in a byte, and sums of rows of them as Triton kernels, in one pass over memory."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.tools.triton.launching import ROUND, TILE, launch, row_stride, target_at


def cast_with_feedback(rows: Tensor, residual: Residual, out: Tensor) -> None:
    num_rows, n = rows.shape
    old, decay, new = residual
    strides = map(row_stride, (rows, old, new, out))
    launch(_cast, (triton.cdiv(n, TILE), num_rows), rows, old, new, out, n, decay, *strides, TILE=TILE)


def round_to_bytes(rows: Tensor, factor: Tensor, codes: Tensor) -> None:
    num_rows, n = rows.shape
    strides = map(row_stride, (rows, codes))
    launch(_round, (triton.cdiv(n, TILE), num_rows), rows, factor, codes, n, *strides, TILE=TILE)


def scale_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    _of_bytes(codes, scale, out, False)


def subtract_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    _of_bytes(codes, scale, out, True)


def _of_bytes(codes: Tensor, scale: Tensor, out: Tensor, subtract: bool) -> None:
    num_rows, n = codes.shape
    strides = map(row_stride, (codes, out))
    launch(_bytes, (triton.cdiv(n, TILE), num_rows), codes, scale, out, n, *strides, SUBTRACT=subtract, TILE=TILE)


def sum_rows(rows: Tensor, out: Tensor) -> None:
    num_rows, n = rows.shape
    rows = rows if rows.stride(1) == 1 or n <= 1 else rows.contiguous()
    launch(_sum, (triton.cdiv(n, TILE),), rows, out, n, num_rows, row_stride(rows), TILE=TILE)


@triton.jit
def _cast(rows, old, new, out, n, decay, row_stride, old_stride, new_stride, out_stride, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    if old is not None:
        old += row * old_stride
    target = target_at(rows + row * row_stride, old, decay, i, i < n)
    narrow = target.to(out.dtype.element_ty)
    tl.store(out + row * out_stride + i, narrow, mask=i < n)
    tl.store(new + row * new_stride + i, target - narrow.to(tl.float32), mask=i < n)


@triton.jit
def _round(rows, factor, codes, n, row_stride, code_stride, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    scale = tl.load(factor)
    x = tl.load(rows + row * row_stride + i, mask=i < n, other=0).to(tl.float32) * scale
    whole = (tl.where(scale == 0, 0.0, x) + ROUND) - ROUND
    tl.store(codes + row * code_stride + i, whole.to(tl.int8), mask=i < n)


@triton.jit
def _bytes(codes, scale, out, n, code_stride, out_stride, SUBTRACT: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = tl.load(codes + row * code_stride + i, mask=i < n, other=0).to(tl.float32) * tl.load(scale)
    if SUBTRACT:
        x = tl.load(out + row * out_stride + i, mask=i < n, other=0) - x
    tl.store(out + row * out_stride + i, x, mask=i < n)


@triton.jit
def _sum(rows, out, n, num_rows, row_stride, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.float32)
    for _ in range(num_rows):
        total += tl.load(rows + i, mask=i < n, other=0).to(tl.float32)
        rows += row_stride
    tl.store(out + i, total, mask=i < n)
