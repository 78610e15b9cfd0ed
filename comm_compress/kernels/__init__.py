"""The few hot primitives, each with a reference in torch operations and faster twins that give the same bytes.

A method calls these and never asks where its tensors live. CPU tensors go to numba; everything else to
the reference, which runs on any device.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from comm_compress.kernels.block_code import BlockCode
from comm_compress.kernels.residual import Residual
from comm_compress.kernels.sketch_reference import WINDOW
from comm_compress.workspace import Scratch, fresh

__all__ = [
    "WINDOW",
    "BlockCode",
    "Residual",
    "absmax_dequantize",
    "absmax_dequantize_sum",
    "absmax_quantize",
    "at_least",
    "block_norms",
    "count_sketch",
    "count_sketch_estimate",
    "decode_blocks",
    "decode_positions",
    "encode_blocks",
    "encode_positions",
    "exponents",
    "gap_steps",
    "hadamard",
    "largest",
    "mark_bits",
    "marked_bits",
    "pack",
    "pack_trits",
    "powers_of_two",
    "random_bits",
    "random_subset",
    "rans_decode",
    "rans_encode",
    "signed_powers",
    "stochastic_quantize",
    "sum_blocks",
    "ulp_apply",
    "ulp_difference",
    "uniform",
    "unpack",
    "unpack_trits",
]


def encode_blocks(
    rows: Tensor,
    code: BlockCode,
    key: tuple[int, int] | None,
    codes: Tensor,
    scales: Tensor,
    residual: Residual | None = None,
) -> None:
    """Codes and scales of every block, packed; with the residual in the same pass. See `blocks_reference`."""
    _topic("blocks", rows).encode_blocks(rows, code, key, codes, scales, residual)


def decode_blocks(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """Every code times its block's scale, to ``out`` ``[R, n]`` of any float dtype."""
    _topic("blocks", codes).decode_blocks(codes, scales, code, out)


def sum_blocks(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """The sum of the decoded rows, accumulated in row order, to ``out`` float32 ``[n]``."""
    _topic("blocks", codes).sum_blocks(codes, scales, code, out)


def absmax_quantize(rows: Tensor, block_size: int, codes: Tensor, scales: Tensor, levels: int = 127) -> None:
    """Quantise each block of a row to -levels..levels with its own scale; see `absmax_reference.absmax_quantize`."""
    _topic("absmax", rows).absmax_quantize(rows, block_size, codes, scales, levels)


def absmax_dequantize(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Float32 ``[R, n]``: every code times its block's scale."""
    values: Tensor = _topic("absmax", scales).absmax_dequantize(codes, scales, block_size)
    return values


def absmax_dequantize_sum(codes: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Float32 ``[n]``: the sum of the decoded rows, accumulated in row order."""
    total: Tensor = _topic("absmax", scales).absmax_dequantize_sum(codes, scales, block_size)
    return total


def pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    """One little-endian bit stream a row; see `bits_reference.pack`."""
    _topic("bits", codes).pack(codes, bits, packed)


def unpack(packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """``[R, n]`` of ``dtype`` (int32 or uint8): the codes that `pack` wrote."""
    codes: Tensor = _topic("bits", packed).unpack(packed, bits, n, dtype)
    return codes


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """int32 ``[n]``: 32 random bits a counter; see `random_reference.random_bits`."""
    words: Tensor = _on(device.type, "random").random_bits(key, n, device)
    return words


def random_subset(key: tuple[int, int], n: int, k: int, device: torch.device) -> Tensor:
    """int64 ``[k]``: k distinct numbers below n, ascending; see `permutation_reference.random_subset`."""
    numbers: Tensor = _on(device.type, "permutation").random_subset(key, n, k, device)
    return numbers


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """float32 ``[n]`` in [0, 1), multiples of 2^-24; see `random_reference.uniform`."""
    numbers: Tensor = _on(device.type, "random").uniform(key, n, device)
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


def largest(
    rows: Tensor, places: Tensor, values: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> None:
    """Places and values of each row's k largest magnitudes; see `select_reference.largest`."""
    _topic("select", rows).largest(rows, places, values, residual, scratch)


def at_least(
    rows: Tensor, floors: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> list[tuple[Tensor, Tensor]]:
    """Places and values of what reaches its row's floor; see `select_reference.at_least`."""
    found: list[tuple[Tensor, Tensor]] = _topic("select", rows).at_least(rows, floors, residual, scratch)
    return found


def mark_bits(places: Tensor, bitmap: Tensor) -> None:
    """Ones at these places of a bit string, zeros elsewhere; see `bitmap_reference.mark_bits`."""
    _topic("bitmap", places).mark_bits(places, bitmap)


def marked_bits(bitmap: Tensor, k: int) -> Tensor:
    """int32 ``[R, k]``: the places that `mark_bits` wrote."""
    places: Tensor = _topic("bitmap", bitmap).marked_bits(bitmap, k)
    return places


def encode_positions(positions: Tensor, low: int, gaps: bool, upper: Tensor, lower: Tensor) -> None:
    """Ascending positions as unary steps and lower bits; see `positions_reference.encode_positions`."""
    _topic("positions", positions).encode_positions(positions, low, gaps, upper, lower)


def decode_positions(upper: Tensor, lower: Tensor, low: int, gaps: bool, k: int) -> Tensor:
    """int32 ``[R, k]``: the positions that `encode_positions` was given."""
    positions: Tensor = _topic("positions", upper).decode_positions(upper, lower, low, gaps, k)
    return positions


def gap_steps(positions: Tensor, widths: int) -> list[int]:
    """Unary steps that gaps take with 0, 1, ... lower bits; see `positions_reference.gap_steps`."""
    steps: list[int] = _topic("positions", positions).gap_steps(positions, widths)
    return steps


def count_sketch(rows: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
    """A count-sketch of each row, to ``out`` float32 ``[R, len(keys), columns]``; see `sketch_reference`."""
    _topic("sketch", rows).count_sketch(rows, keys, out)


def count_sketch_estimate(sketch: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
    """The sketched vector's coordinates, as far as it shows them, to ``out`` float32 ``[n]``."""
    _topic("sketch", sketch).count_sketch_estimate(sketch, keys, out)


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
    found: Tensor = _topic("ulp", values).exponents(values)
    return found


def ulp_difference(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Symbols and raw bits of the way between floats; see `ulp_reference.ulp_difference`."""
    symbols, raw_bits = _topic("ulp", old).ulp_difference(old, new)
    return symbols, raw_bits


def ulp_apply(old: Tensor, symbols: Tensor, raw_bits: Tensor) -> Tensor:
    """The new floats from the old; see `ulp_reference.ulp_apply`."""
    new: Tensor = _topic("ulp", old).ulp_apply(old, symbols, raw_bits)
    return new


@functools.cache
def _on(device: str, topic: str) -> ModuleType:
    """A topic's kernels for one kind of device; numba takes a third of a second to import, so only where used."""
    return importlib.import_module(f"comm_compress.kernels.{topic}_{'cpu' if device == 'cpu' else 'reference'}")


def _topic(topic: str, tensor: Tensor) -> ModuleType:
    return _on(tensor.device.type, topic)
