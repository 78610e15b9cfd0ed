"""The few hot primitives, each with a reference in torch operations and faster twins that give the same bytes.

A method calls these and never asks where its tensors live. CPU float32 goes to numba; everything else to
the reference, which runs on any device.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

from comm_compress.kernels import reference
from comm_compress.kernels.reference import topk

__all__ = ["absmax_dequantize", "absmax_dequantize_sum", "absmax_quantize", "topk"]


def absmax_quantize(rows: Tensor, block_size: int, codes: Tensor, scales: Tensor) -> None:
    """Quantise each block of a row to int8 with its own scale; see `reference.absmax_quantize`."""
    _home(rows).absmax_quantize(rows, block_size, codes, scales)


def absmax_dequantize(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Float32 ``[R, n]``: every code times its block's scale."""
    values: Tensor = _home(scales).absmax_dequantize(codes, scales, block_size)
    return values


def absmax_dequantize_sum(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Float32 ``[n]``: the sum of the decoded rows, accumulated in row order."""
    total: Tensor = _home(scales).absmax_dequantize_sum(codes, scales, block_size)
    return total


def _home(tensor: Tensor) -> ModuleType:
    if tensor.device.type == "cpu" and tensor.dtype == torch.float32:
        return _cpu()
    return reference


@functools.cache
def _cpu() -> ModuleType:
    from comm_compress.kernels import cpu  # numba takes a third of a second: only where it is used

    return cpu
