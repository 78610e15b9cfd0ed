"""The few hot primitives, each with a reference in torch operations and faster twins that give the same bytes.

A method calls these and never asks where its tensors live. CPU float32 goes to numba; everything else to
the reference, which runs on any device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from comm_compress.kernels import reference, sketch_reference
from comm_compress.kernels.reference import topk

__all__ = [
    "absmax_dequantize",
    "absmax_dequantize_sum",
    "absmax_quantize",
    "count_sketch",
    "count_sketch_estimate",
    "pack",
    "random_bits",
    "topk",
    "uniform",
    "unpack",
]


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


def pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    """One little-endian bit stream a row; see `reference.pack`."""
    _by_device(codes).pack(codes, bits, packed)


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """int32 ``[R, n]``: the codes that `pack` wrote."""
    codes: Tensor = _by_device(packed).unpack(packed, bits, n)
    return codes


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """int32 ``[n]``: 32 random bits a counter; see `reference.random_bits`."""
    words: Tensor = _by_device(torch.empty(0, device=device)).random_bits(key, n, device)
    return words


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """float32 ``[n]`` in [0, 1), multiples of 2^-24; see `reference.uniform`."""
    numbers: Tensor = _by_device(torch.empty(0, device=device)).uniform(key, n, device)
    return numbers


def count_sketch(rows: Tensor, keys: Sequence[tuple[int, int]], columns: int) -> Tensor:
    """float32 ``[R, len(keys), columns]``: a count-sketch of each row; see `sketch_reference.count_sketch`."""
    if rows.device.type == "cpu":
        from comm_compress.kernels import sketch_cpu

        return sketch_cpu.count_sketch(rows.float(), keys, columns)
    return sketch_reference.count_sketch(rows, keys, columns)


def count_sketch_estimate(sketch: Tensor, keys: Sequence[tuple[int, int]], n: int) -> Tensor:
    """float32 ``[n]``: the sketched vector's coordinates, as far as it shows them."""
    if sketch.device.type == "cpu":
        from comm_compress.kernels import sketch_cpu

        return sketch_cpu.count_sketch_estimate(sketch, keys, n)
    return sketch_reference.count_sketch_estimate(sketch, keys, n)


def _by_device(tensor: Tensor) -> ModuleType:
    return _cpu() if tensor.device.type == "cpu" else reference


def _home(tensor: Tensor) -> ModuleType:
    if tensor.device.type == "cpu" and tensor.dtype == torch.float32:
        return _cpu()
    return reference


@functools.cache
def _cpu() -> ModuleType:
    from comm_compress.kernels import cpu  # numba takes a third of a second: only where it is used

    return cpu
