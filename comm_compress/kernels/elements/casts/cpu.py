"""Narrower floats, whole numbers in a byte, and sums of rows of them as numba kernels, in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.elements.residual.cpu import few_as_float32, load_target, target_arrays
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.tools.compiled import ROUND, Array, compiled
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.packing import load_codes, store_codes
from comm_compress.kernels.tools.vectors.vectors import (
    LANES,
    bits_of,
    load,
    rounded,
    rows_in_line,
    splat,
    store,
    whole_bytes,
    whole_floats,
)


def cast_with_feedback(rows: Tensor, residual: Residual, out: Tensor) -> None:
    vectors = -(-rows.shape[1] // LANES)
    rows, wide = few_as_float32(rows.contiguous(), residual)
    for row in range(rows.shape[0]):
        over_blocks(_cast, vectors, LANES, *target_arrays(rows, wide, row), bits_of(out[row]))


def round_to_bytes(rows: Tensor, factor: Tensor, codes: Tensor) -> None:
    if factor == 0:
        codes.zero_()
        return
    rows, vectors = few_as_float32(rows.contiguous())[0], -(-rows.shape[1] // LANES)
    for row in range(rows.shape[0]):
        arrays = (bits_of(rows[row]), np.float32(factor), codes[row].view(torch.uint8).numpy())
        over_blocks(_round, vectors, LANES, *arrays)


def scale_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    _of_bytes(_scale, codes, scale, out)


def subtract_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    _of_bytes(_subtract, codes, scale, out)


def _of_bytes(kernel: Callable[..., None], codes: Tensor, scale: Tensor, out: Tensor) -> None:
    vectors = -(-codes.shape[1] // LANES)
    for row in range(codes.shape[0]):
        over_blocks(kernel, vectors, LANES, codes[row].view(torch.uint8).numpy(), np.float32(scale), out[row].numpy())


def sum_rows(rows: Tensor, out: Tensor) -> None:
    if rows.numel() == 0:
        out.zero_()
        return
    line, stride = rows_in_line(rows if rows.stride(1) == 1 else rows.contiguous())
    over_blocks(_sum, -(-out.numel() // LANES), LANES, line, stride, rows.shape[0], out.numpy())


@compiled
def _cast(first: int, last: int, rows: Array, old: Array, decay: np.float32, new: Array, out: Array) -> None:
    share = splat(decay)
    for i in range(first * LANES, last * LANES, LANES):
        x = load_target(rows, old, share, i, rows.size)
        store(out, i, rows.size, x)
        store(new, i, rows.size, x - rounded(out, x))


@compiled
def _round(first: int, last: int, rows: Array, factor: np.float32, codes: Array) -> None:
    scale, shift = splat(factor), splat(ROUND)
    for i in range(first * LANES, last * LANES, LANES):
        x = load(rows, i, rows.size) * scale
        store_codes(codes, i, codes.size, 8, whole_bytes((x + shift) - shift))


@compiled
def _scale(first: int, last: int, codes: Array, scale: np.float32, out: Array) -> None:
    factor = splat(scale)
    for i in range(first * LANES, last * LANES, LANES):
        store(out, i, out.size, whole_floats(load_codes(codes, i, codes.size, 8)) * factor)


@compiled
def _subtract(first: int, last: int, codes: Array, scale: np.float32, out: Array) -> None:
    factor = splat(scale)
    for i in range(first * LANES, last * LANES, LANES):
        x = whole_floats(load_codes(codes, i, codes.size, 8)) * factor
        store(out, i, out.size, load(out, i, out.size) - x)


@compiled
def _sum(first: int, last: int, rows: Array, stride: int, num_rows: int, out: Array) -> None:
    for i in range(first * LANES, last * LANES, LANES):
        total = splat(np.float32(0))
        for row in range(num_rows):
            total = total + load(rows, row * stride + i, row * stride + out.size)
        store(out, i, out.size, total)
