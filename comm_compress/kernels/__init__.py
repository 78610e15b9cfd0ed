"""The few hot primitives, each with a reference in torch operations and faster twins that give the same bytes.

A method calls these and never asks where its tensors live. CPU float32 goes to numba; everything else to
the reference, which runs on any device.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

from comm_compress.kernels import reference, ulp_reference
from comm_compress.kernels.reference import topk

__all__ = [
    "absmax_dequantize",
    "absmax_dequantize_sum",
    "absmax_quantize",
    "exponents",
    "pack",
    "random_bits",
    "rans_decode",
    "rans_encode",
    "topk",
    "ulp_apply",
    "ulp_difference",
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


def rans_encode(symbols: Tensor, contexts: Tensor | None = None, num_contexts: int = 1) -> Tensor:
    """uint8 ``[m]`` on CPU: the entropy-coded stream of uint8 symbols ``[n]``; see `entropy_reference`.

    ``contexts`` uint8 ``[n]``, below ``num_contexts``: which table of frequencies a symbol is coded with.
    There is no GPU kernel: symbols on a GPU are copied to the CPU and coded there.
    """
    from comm_compress.kernels import entropy_cpu

    return entropy_cpu.rans_encode(symbols.cpu(), None if contexts is None else contexts.cpu(), num_contexts)


def rans_decode(stream: Tensor, n: int, contexts: Tensor | None = None, num_contexts: int = 1) -> Tensor:
    """uint8 ``[n]`` on CPU: the symbols that `rans_encode` was given, from the same contexts."""
    from comm_compress.kernels import entropy_cpu

    return entropy_cpu.rans_decode(stream.cpu(), n, None if contexts is None else contexts.cpu(), num_contexts)


def exponents(values: Tensor) -> Tensor:
    """uint8 ``[n]``: the biased exponents of floats."""
    found: Tensor = _ulp(values).exponents(values)
    return found


def ulp_difference(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Symbols and raw bits of the way between floats; see `ulp_reference.ulp_difference`."""
    symbols, raw_bits = _ulp(old).ulp_difference(old, new)
    return symbols, raw_bits


def ulp_apply(old: Tensor, symbols: Tensor, raw_bits: Tensor) -> Tensor:
    """The new floats from the old; see `ulp_reference.ulp_apply`."""
    new: Tensor = _ulp(old).ulp_apply(old, symbols, raw_bits)
    return new


def _ulp(tensor: Tensor) -> ModuleType:
    if tensor.device.type != "cpu":
        return ulp_reference
    from comm_compress.kernels import ulp_cpu

    return ulp_cpu


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
