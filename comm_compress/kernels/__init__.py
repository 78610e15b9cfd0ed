"""The few hot primitives, each with a reference in torch operations and faster twins that give the same bytes.

A method calls these and never asks where its tensors live. CPU tensors go to numba, CUDA tensors to Triton where a
topic has such kernels; everything else to the reference, which runs on any device.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from comm_compress.kernels.common.block_code import BlockCode
from comm_compress.kernels.common.matrix_scales import Lines, Shape, lines_of
from comm_compress.kernels.common.residual import Residual
from comm_compress.kernels.common.scratch import Scratch, fresh
from comm_compress.kernels.reference.powers import POWER_BLOCK
from comm_compress.kernels.reference.sketch import WINDOW

__all__ = [
    "POWER_BLOCK",
    "WINDOW",
    "BlockCode",
    "Lines",
    "Residual",
    "Shape",
    "add_lines",
    "at_least",
    "by_exponent",
    "cast_with_feedback",
    "column_energies",
    "count_sketch",
    "count_sketch_estimate",
    "decode_blocks",
    "decode_means",
    "decode_positions",
    "decode_powers",
    "decode_votes",
    "decode_window",
    "encode_blocks",
    "encode_means",
    "encode_positions",
    "encode_powers",
    "encode_votes",
    "encode_window",
    "exponent_counts",
    "gap_steps",
    "largest",
    "line_bytes",
    "line_scales",
    "lines_of",
    "mark_bits",
    "marked_bits",
    "noise_bits",
    "pack",
    "pack_trits",
    "quantise_lines",
    "random_bits",
    "random_subset",
    "rans_decode",
    "rans_encode",
    "residual_target",
    "round_to_bytes",
    "row_energies",
    "scale_bytes",
    "subtract_bytes",
    "sum_blocks",
    "sum_means",
    "sum_powers",
    "sum_rows",
    "sum_votes",
    "sum_window",
    "ulp_apply",
    "ulp_difference",
    "uniform",
    "unpack",
    "unpack_trits",
]


def residual_target(rows: Tensor, residual: Residual) -> Tensor:
    """`Residual.target`: ``rows + decay * old``, written to ``residual.new``."""
    target: Tensor = _topic("residual", rows).residual_target(rows, residual)
    return target


def encode_blocks(
    rows: Tensor,
    code: BlockCode,
    key: tuple[int, int] | None,
    codes: Tensor,
    scales: Tensor,
    residual: Residual | None = None,
) -> None:
    """Codes and scales of every block, packed; with the residual in the same pass. See `reference.blocks`."""
    _topic("blocks", rows).encode_blocks(rows, code, key, codes, scales, residual)


def decode_blocks(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """Every code times its block's scale, to ``out`` ``[R, n]`` of any float dtype."""
    _topic("blocks", codes).decode_blocks(codes, scales, code, out)


def sum_blocks(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    """The sum of the decoded rows, accumulated in row order, to ``out`` float32 ``[n]``."""
    _topic("blocks", codes).sum_blocks(codes, scales, code, out)


def pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    """One little-endian bit stream a row; see `reference.bits.pack`."""
    _topic("bits", codes).pack(codes, bits, packed)


def unpack(packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """``[R, n]`` of ``dtype`` (int32 or uint8): the codes that `pack` wrote."""
    codes: Tensor = _topic("bits", packed).unpack(packed, bits, n, dtype)
    return codes


def random_bits(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """int32 ``[n]``: 32 random bits a counter; see `reference.random.random_bits`."""
    words: Tensor = _on(device.type, "random").random_bits(key, n, device)
    return words


def noise_bits(key: tuple[int, int], num_rows: int, n: int, device: torch.device) -> Tensor:
    """int32 ``[R, n]``: 32 random bits for each element of rows; see `reference.random.noise_bits`."""
    words: Tensor = _on(device.type, "random").noise_bits(key, num_rows, n, device)
    return words


def random_subset(key: tuple[int, int], n: int, k: int, device: torch.device) -> Tensor:
    """int64 ``[k]``: k distinct numbers below n, ascending; see `reference.subsets.random_subset`."""
    numbers: Tensor = _on(device.type, "subsets").random_subset(key, n, k, device)
    return numbers


def uniform(key: tuple[int, int], n: int, device: torch.device) -> Tensor:
    """float32 ``[n]`` in [0, 1), multiples of 2^-24; see `reference.random.uniform`."""
    numbers: Tensor = _on(device.type, "random").uniform(key, n, device)
    return numbers


def encode_means(
    rows: Tensor, group_size: int, above: Tensor, below: Tensor, bits: Tensor, residual: Residual | None = None
) -> None:
    """The mean of each side of zero in every group, and the signs; see `reference.onebit.encode_means`."""
    _topic("onebit", rows).encode_means(rows, group_size, above, below, bits, residual)


def decode_means(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """The mean of every element's side, to ``out`` ``[R, n]`` of any float dtype."""
    _topic("onebit", bits).decode_means(above, below, bits, group_size, out)


def sum_means(above: Tensor, below: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """The sum of the decoded rows, accumulated in row order, to ``out`` float32 ``[n]``."""
    _topic("onebit", bits).sum_means(above, below, bits, group_size, out)


def encode_votes(rows: Tensor, group_size: int, key: tuple[int, int], marks: Tensor, bits: Tensor) -> None:
    """Signs, zeros by coin, and what every group is; see `reference.votes.encode_votes`."""
    _topic("votes", rows).encode_votes(rows, group_size, key, marks, bits)


def decode_votes(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """-1, 0, 1 or NaN, to ``out`` ``[R, n]`` of any float dtype; see `reference.votes.decode_votes`."""
    _topic("votes", bits).decode_votes(marks, bits, group_size, out)


def sum_votes(marks: Tensor, bits: Tensor, group_size: int, out: Tensor) -> None:
    """R times the sign that most rows have, to ``out`` float32 ``[n]``; see `reference.votes.sum_votes`."""
    _topic("votes", bits).sum_votes(marks, bits, group_size, out)


def cast_with_feedback(rows: Tensor, residual: Residual, out: Tensor) -> None:
    """The residual's target of ``rows`` ``[R, n]`` in ``out``'s dtype, and what that loses; see `reference.casts`."""
    _topic("casts", rows).cast_with_feedback(rows, residual, out)


def round_to_bytes(rows: Tensor, factor: Tensor, codes: Tensor) -> None:
    """``rows`` times ``factor`` as whole numbers, to int8 ``codes``; see `reference.casts.round_to_bytes`."""
    _topic("casts", rows).round_to_bytes(rows, factor, codes)


def scale_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    """int8 ``codes`` ``[R, n]`` times ``scale``, a float32 scalar, to ``out`` float32 ``[R, n]``."""
    _topic("casts", codes).scale_bytes(codes, scale, out)


def subtract_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    """The same taken from ``out``."""
    _topic("casts", codes).subtract_bytes(codes, scale, out)


def sum_rows(rows: Tensor, out: Tensor) -> None:
    """The sum of float ``rows`` ``[R, n]``, accumulated in row order, to ``out`` float32 ``[n]``."""
    _topic("casts", rows).sum_rows(rows, out)


def encode_powers(
    rows: Tensor, key: tuple[int, int] | None, exponents: Tensor, signs: Tensor, residual: Residual | None = None
) -> None:
    """Powers of two as exponents and signs; see `reference.powers.encode_powers`."""
    _topic("powers", rows).encode_powers(rows, key, exponents, signs, residual)


def decode_powers(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    """What `encode_powers` wrote, to ``out`` ``[R, n]`` of any float dtype."""
    _topic("powers", exponents).decode_powers(exponents, signs, out)


def sum_powers(exponents: Tensor, signs: Tensor, out: Tensor) -> None:
    """The sum of the decoded rows, accumulated in row order, to ``out`` float32 ``[n]``."""
    _topic("powers", exponents).sum_powers(exponents, signs, out)


def encode_window(
    rows: Tensor, key: tuple[int, int] | None, lowest: Tensor, codes: Tensor, residual: Residual | None = None
) -> None:
    """Powers of two in a byte each, under their block's largest; see `reference.powers.encode_window`."""
    _topic("powers", rows).encode_window(rows, key, lowest, codes, residual)


def decode_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    """What `encode_window` wrote, to ``out`` ``[R, n]`` of any float dtype."""
    _topic("powers", codes).decode_window(lowest, codes, out)


def sum_window(lowest: Tensor, codes: Tensor, out: Tensor) -> None:
    """The sum of the decoded rows, accumulated in row order, to ``out`` float32 ``[n]``."""
    _topic("powers", codes).sum_window(lowest, codes, out)


def pack_trits(codes: Tensor, packed: Tensor) -> None:
    """Five codes of -1, 0, 1 a byte; see `reference.trits.pack_trits`."""
    _topic("trits", codes).pack_trits(codes, packed)


def unpack_trits(packed: Tensor, n: int) -> Tensor:
    """int8 ``[R, n]``: the codes that `pack_trits` wrote."""
    codes: Tensor = _topic("trits", packed).unpack_trits(packed, n)
    return codes


def largest(
    rows: Tensor, places: Tensor, values: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> None:
    """Places and values of each row's k largest magnitudes; see `reference.select.largest`."""
    _topic("select", rows).largest(rows, places, values, residual, scratch)


def at_least(
    rows: Tensor, floors: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> list[tuple[Tensor, Tensor]]:
    """Places and values of what reaches its row's floor; see `reference.select.at_least`."""
    found: list[tuple[Tensor, Tensor]] = _topic("select", rows).at_least(rows, floors, residual, scratch)
    return found


def mark_bits(places: Tensor, bitmap: Tensor) -> None:
    """Ones at these places of a bit string, zeros elsewhere; see `reference.bitmap.mark_bits`."""
    _topic("bitmap", places).mark_bits(places, bitmap)


def marked_bits(bitmap: Tensor, k: int) -> Tensor:
    """int32 ``[R, k]``: the places that `mark_bits` wrote."""
    places: Tensor = _topic("bitmap", bitmap).marked_bits(bitmap, k)
    return places


def encode_positions(positions: Tensor, low: int, gaps: bool, upper: Tensor, lower: Tensor) -> None:
    """Ascending positions as unary steps and lower bits; see `reference.positions.encode_positions`."""
    _topic("positions", positions).encode_positions(positions, low, gaps, upper, lower)


def decode_positions(upper: Tensor, lower: Tensor, low: int, gaps: bool, k: int) -> Tensor:
    """int32 ``[R, k]``: the positions that `encode_positions` was given."""
    positions: Tensor = _topic("positions", upper).decode_positions(upper, lower, low, gaps, k)
    return positions


def gap_steps(positions: Tensor, widths: int) -> list[int]:
    """Unary steps that gaps take with 0, 1, ... lower bits; see `reference.positions.gap_steps`."""
    steps: list[int] = _topic("positions", positions).gap_steps(positions, widths)
    return steps


def count_sketch(rows: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
    """A count-sketch of each row, to ``out`` float32 ``[R, len(keys), columns]``; see `reference.sketch`."""
    _topic("sketch", rows).count_sketch(rows, keys, out)


def count_sketch_estimate(sketch: Tensor, keys: Sequence[tuple[int, int]], out: Tensor) -> None:
    """The sketched vector's coordinates, as far as it shows them, to ``out`` float32 ``[n]``."""
    _topic("sketch", sketch).count_sketch_estimate(sketch, keys, out)


def line_bytes(energies: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes for the scales of lines with these mean squares, and the peaks; see `reference.matrix_scales`."""
    codes, peaks = _topic("matrix_scales", energies).line_bytes(energies, lengths)
    return codes, peaks


def line_scales(codes: Tensor, lengths: Tensor, peaks: Tensor) -> Tensor:
    """float32 ``[k]``: the scales that bytes stand for; see `reference.matrix_scales.line_scales`."""
    scales: Tensor = _topic("matrix_scales", codes).line_scales(codes, lengths, peaks)
    return scales


def row_energies(x: Tensor, lines: Lines) -> Tensor:
    """float64 ``[rows]``: the mean square of each row of the matrices in ``x`` float32 ``[n]``, summed in any order."""
    found: Tensor = _topic("matrix_scales", x).row_energies(x, lines)
    return found


def column_energies(x: Tensor, rows: Tensor, lines: Lines) -> Tensor:
    """float64 ``[columns]``: that of each column, after its rows were divided by their scales."""
    found: Tensor = _topic("matrix_scales", x).column_energies(x, rows, lines)
    return found


def quantise_lines(x: Tensor, rows: Tensor, columns: Tensor, dead_zone: float, codes: Tensor, lines: Lines) -> None:
    """Codes of ``x``, in which what they lose is left; see `reference.matrix_scales.quantise_lines`."""
    _topic("matrix_scales", x).quantise_lines(x, rows, columns, dead_zone, codes, lines)


def add_lines(codes: Tensor, rows: Tensor, columns: Tensor, out: Tensor, lines: Lines) -> None:
    """Add what they stand for to ``out`` float32 ``[n]``."""
    _topic("matrix_scales", codes).add_lines(codes, rows, columns, out, lines)


def rans_encode(
    symbols: Tensor, contexts: Tensor | None = None, num_contexts: int = 1, scratch: Scratch = fresh
) -> list[Tensor]:
    """The entropy-coded stream of uint8 symbols ``[n]``: its parts in order, uint8; see `rans_stream`.

    ``contexts`` uint8 ``[n]``, below ``num_contexts``: which table of frequencies a symbol is coded with. Parts may
    lie in memory of ``scratch``.
    """
    there = _coding_device(symbols)
    on_it = symbols.to(there), None if contexts is None else contexts.to(there)
    coder, loops = _rans(there.type)
    parts: list[Tensor] = coder.rans_encode(loops, *on_it, num_contexts, scratch)
    return parts if there == symbols.device else [torch.cat(parts).to(symbols.device)]


def rans_decode(
    stream: Tensor, out: Tensor, contexts: Tensor | None = None, num_contexts: int = 1, scratch: Scratch = fresh
) -> Tensor:
    """Write to ``out`` uint8 ``[n]``, contiguous, the symbols that `rans_encode` was given, from the same contexts.

    What is needed meanwhile takes memory of ``scratch``.
    """
    there = _coding_device(stream)
    symbols = out if there == out.device else torch.empty_like(out, device=there)
    on_it = stream.to(there), symbols, None if contexts is None else contexts.to(there)
    coder, loops = _rans(there.type)
    coder.rans_decode(loops, *on_it, num_contexts, scratch)
    return out if symbols is out else out.copy_(symbols)


def exponent_counts(values: Tensor) -> Tensor:
    """int64 ``[256]``: how many floats have each biased exponent."""
    counts: Tensor = _topic("ulp", values).exponent_counts(values)
    return counts


def by_exponent(values: Tensor, table: Tensor, out: Tensor) -> Tensor:
    """Write to ``out`` uint8 ``[n]`` what ``table`` uint8 ``[256]`` has for each float's exponent."""
    found: Tensor = _topic("ulp", values).by_exponent(values, table, out)
    return found


def ulp_difference(old: Tensor, new: Tensor, scratch: Scratch = fresh) -> tuple[Tensor, Tensor]:
    """Symbols and raw bits of the way between floats; see `reference.ulp.ulp_difference`."""
    symbols, raw_bits = _topic("ulp", old).ulp_difference(old, new, scratch)
    return symbols, raw_bits


def ulp_apply(values: Tensor, symbols: Tensor, raw_bits: Tensor) -> Tensor:
    """Go that way in place; see `reference.ulp.ulp_apply`."""
    new: Tensor = _topic("ulp", values).ulp_apply(values, symbols, raw_bits)
    return new


@functools.cache
def _on(device: str, topic: str) -> ModuleType:
    """A topic's kernels for one kind of device; numba takes a third of a second to import, so only where used."""
    if device == "cuda":
        kind = "triton" if _on_triton(topic) else "reference"
    else:
        kind = "cpu" if device == "cpu" else "reference"
    return importlib.import_module(f"comm_compress.kernels.{kind}.{topic}")


@functools.cache
def _on_triton(topic: str) -> bool:
    """Triton comes with CUDA builds of torch; without it, and for what it has no kernels for, the reference runs."""
    wanted = ("triton", f"comm_compress.kernels.triton.{topic}")
    return all(importlib.util.find_spec(name) is not None for name in wanted)


def _topic(topic: str, tensor: Tensor) -> ModuleType:
    return _on(tensor.device.type, topic)


def _coding_device(symbols: Tensor) -> torch.device:
    """Where symbols are entropy coded: the reference goes one by one in Python, so without kernels on the CPU."""
    here = symbols.device
    return here if here.type == "cuda" and _on_triton("entropy") else torch.device("cpu")


@functools.cache
def _rans(device: str) -> tuple[ModuleType, object]:
    """What codes streams, and the loops that it needs on one kind of device."""
    coder = importlib.import_module("comm_compress.kernels.common.rans_stream")
    return coder, _on(device, "entropy").LOOPS
