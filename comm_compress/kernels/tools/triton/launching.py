"""What the Triton kernels share: how they are launched, and bounds on what one program holds.

Every operation must round as the reference's does: products and sums are never contracted to fused ones
(`launch`), float32 quotients are ``tl.div_rn``, and sums in floating point are written out in the reference's order,
because the order of ``tl.sum`` is the compiler's. int32 offsets inside a row, int64 between rows.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # elements that a program of four warps holds in registers

ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds half to even
INFINITE, MAGNITUDE = tl.constexpr(0x7F800000), tl.constexpr(0x7FFFFFFF)  # of float32's bits


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel over ``grid`` on the device of its first argument, on the current stream."""
    if 0 in grid:
        return
    assert all(side < 1 << 16 for side in grid[1:]), "CUDA's limit"
    device = arguments[0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[grid](*arguments, enable_fp_fusion=False, **constants)


def row_stride(rows: Tensor | None) -> int:
    """Items from one row to the next of a tensor whose rows are contiguous; 0 of one that is not there."""
    if rows is None:
        return 0
    assert rows.stride(1) == 1 or rows.shape[1] <= 1
    assert rows.shape[1] < 2**31 - (1 << 16), "positions in a row are int32"
    return rows.stride(0)


def as_int32(word: int) -> int:
    """The same 32 bits: Triton compiles a kernel anew for every integer type it is given."""
    return word - (1 << 32) if word >= 1 << 31 else word


def power_of_two(size: int) -> int:
    """The next power of two: what a Triton tensor's sides have to be."""
    return 1 << max(size - 1, 0).bit_length()


def warps(elements: int) -> int:
    """How many share a tile: 16 elements a thread, at most 8 warps."""
    return min(8, max(1, elements // 512))


@triton.jit
def target_at(rows, old, decay, i, mask):
    """float32: the elements ``i`` of a row, and of what earlier steps left out (``old`` None: nothing); 0 where masked.

    `Residual.target`, which rounds the product and the sum.
    """
    x = tl.load(rows + i, mask=mask, other=0).to(tl.float32)
    if old is not None:
        x += tl.load(old + i, mask=mask, other=0).to(tl.float32) * decay
    return x
