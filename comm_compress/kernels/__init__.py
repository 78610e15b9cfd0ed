"""The few hot primitives, each with a reference in torch operations and faster twins that give the same bytes.

A method calls these and never asks where its tensors live. CPU float32 goes to numba; everything else to
the reference, which runs on any device.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

from comm_compress.kernels import bitmap_reference, reference, select_reference
from comm_compress.kernels.select_reference import magnitude_keys

__all__ = [
    "absmax_dequantize",
    "absmax_dequantize_sum",
    "absmax_quantize",
    "at_least",
    "largest",
    "magnitude_keys",
    "mark_bits",
    "marked_bits",
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


def largest(keys: Tensor, k: int) -> Tensor:
    """int32 ``[R, k]``: where the k largest keys lie, ascending; see `select_reference.largest`."""
    places: Tensor = _selection(keys).largest(keys, k)
    return places


def at_least(keys: Tensor, floors: Tensor) -> list[Tensor]:
    """For each row the ascending positions of keys that reach its floor; see `select_reference.at_least`."""
    places: list[Tensor] = _selection(keys).at_least(keys, floors)
    return places


def topk(rows: Tensor, k: int, values: Tensor, indices: Tensor) -> None:
    """The k elements of largest magnitude by ascending index; see `select_reference.topk`."""
    _selection(rows).topk(rows, k, values, indices)


def mark_bits(places: Tensor, bitmap: Tensor) -> None:
    """Ones at these places of a bit string, zeros elsewhere; see `bitmap_reference.mark_bits`."""
    _bitmaps(places).mark_bits(places, bitmap)


def marked_bits(bitmap: Tensor, k: int) -> Tensor:
    """int32 ``[R, k]``: the places that `mark_bits` wrote."""
    places: Tensor = _bitmaps(bitmap).marked_bits(bitmap, k)
    return places


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


def _selection(tensor: Tensor) -> ModuleType:
    if tensor.device.type != "cpu":
        return select_reference
    from comm_compress.kernels import select_cpu

    return select_cpu


def _bitmaps(tensor: Tensor) -> ModuleType:
    if tensor.device.type != "cpu":
        return bitmap_reference
    from comm_compress.kernels import bitmap_cpu

    return bitmap_cpu
