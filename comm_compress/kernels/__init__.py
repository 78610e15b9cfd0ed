"""The few hot primitives, each with a reference in torch operations and faster twins that give the same bytes.

A method calls these and never asks where its tensors live. CPU tensors go to numba; everything else to
the reference, which runs on any device.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch
from torch import Tensor

from comm_compress.kernels import reference
from comm_compress.kernels.reference import topk

__all__ = [
    "absmax_dequantize",
    "absmax_dequantize_sum",
    "absmax_quantize",
    "block_norms",
    "hadamard",
    "pack",
    "pack_trits",
    "powers_of_two",
    "random_bits",
    "signed_powers",
    "stochastic_quantize",
    "topk",
    "uniform",
    "unpack",
    "unpack_trits",
]


def absmax_quantize(rows: Tensor, block_size: int, codes: Tensor, scales: Tensor, levels: int = 127) -> None:
    """Quantise each block of a row to -levels..levels with its own scale; see `reference.absmax_quantize`."""
    _by_device(rows).absmax_quantize(rows, block_size, codes, scales, levels)


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


def unpack(packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """``[R, n]`` of ``dtype`` (int32 or uint8): the codes that `pack` wrote."""
    codes: Tensor = _by_device(packed).unpack(packed, bits, n, dtype)
    return codes


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """int32 ``[n]``: 32 random bits a counter; see `reference.random_bits`."""
    words: Tensor = _by_device(torch.empty(0, device=device)).random_bits(key, n, device)
    return words


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """float32 ``[n]`` in [0, 1), multiples of 2^-24; see `reference.uniform`."""
    numbers: Tensor = _by_device(torch.empty(0, device=device)).uniform(key, n, device)
    return numbers


def block_norms(rows: Tensor, block_size: int, p: float) -> Tensor:
    """float64 ``[R, blocks]``: the 1-, 2- or infinity-norm of each block; see `quantize_reference.block_norms`."""
    norms: Tensor = _topic("quantize", rows).block_norms(rows, block_size, p)
    return norms


def stochastic_quantize(
    rows: Tensor, scales: Tensor, block_size: int, levels: int, key: tuple[int, int], codes: Tensor, offset: float = 0
) -> None:
    """Unbiased rounding to multiples of given scales; see `quantize_reference.stochastic_quantize`."""
    _topic("quantize", rows).stochastic_quantize(rows, scales, block_size, levels, key, codes, offset)


def hadamard(rows: Tensor) -> Tensor:
    """Float32 ``[R, n]``: every 32 elements rotated; see `quantize_reference.hadamard`."""
    rotated: Tensor = _topic("quantize", rows).hadamard(rows)
    return rotated


def powers_of_two(rows: Tensor, lowest: Tensor, key: tuple[int, int] | None) -> Tensor:
    """uint8 ``[R, n]``: magnitudes rounded to powers of two; see `formats_reference.powers_of_two`."""
    places: Tensor = _topic("formats", rows).powers_of_two(rows, lowest, key)
    return places


def signed_powers(places: Tensor, lowest: Tensor, negative: Tensor) -> Tensor:
    """Float32 ``[R, n]``: the powers of two again; see `formats_reference.signed_powers`."""
    values: Tensor = _topic("formats", places).signed_powers(places, lowest, negative)
    return values


def pack_trits(codes: Tensor, packed: Tensor) -> None:
    """Five codes of -1, 0, 1 a byte; see `formats_reference.pack_trits`."""
    _topic("formats", codes).pack_trits(codes, packed)


def unpack_trits(packed: Tensor, n: int) -> Tensor:
    """int8 ``[R, n]``: the codes that `pack_trits` wrote."""
    codes: Tensor = _topic("formats", packed).unpack_trits(packed, n)
    return codes


def _topic(topic: str, tensor: Tensor) -> ModuleType:
    home = "cpu" if tensor.device.type == "cpu" else "reference"
    return importlib.import_module(f"comm_compress.kernels.{topic}_{home}")


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
