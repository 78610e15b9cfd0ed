"""Entropy coding by static rANS; `common.rans_stream` defines the stream.

The loops over all symbols are kernels (`interfaces.entropy`). The rest is here: tables of frequencies, symbols too rare
for a frequency of their own, and the parts of the stream. The device sees the symbols, the CPU sees the tables.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.common.frequencies import MOST_BYTES, Counts, Marks, Table, starts_of
from comm_compress.kernels.common.rans_stream import BLOCK, LANES, lanes_of
from comm_compress.kernels.common.scratch import Scratch, fresh
from comm_compress.kernels.dispatch import entropy, has_triton
from comm_compress.kernels.interfaces.entropy import EntropyKernels

Tables = dict[int, Table]
"""A table of frequencies for every context that occurs."""


def encode(
    symbols: Tensor, contexts: Tensor | None = None, num_contexts: int = 1, scratch: Scratch = fresh
) -> list[Tensor]:
    """The stream of ``symbols`` uint8 ``[n]``: its parts in order, uint8.

    ``contexts`` uint8 ``[n]``, each below ``num_contexts``: which table of frequencies a symbol is coded with. Parts
    may lie in memory of ``scratch``.
    """
    there = _coding_device(symbols)
    on_it = symbols.to(there), None if contexts is None else contexts.to(there)
    parts = encode_with(entropy.on(there), *on_it, num_contexts, scratch)
    return parts if there == symbols.device else [torch.cat(parts).to(symbols.device)]


def decode(
    stream: Tensor, out: Tensor, contexts: Tensor | None = None, num_contexts: int = 1, scratch: Scratch = fresh
) -> Tensor:
    """Write to ``out`` uint8 ``[n]``, contiguous, the symbols that `encode` was given, from the same contexts.

    What is needed meanwhile takes memory of ``scratch``. Returns ``out``.
    """
    there = _coding_device(stream)
    symbols = out if there == out.device else torch.empty_like(out, device=there)
    on_it = stream.to(there), symbols, None if contexts is None else contexts.to(there)
    decode_with(entropy.on(there), *on_it, num_contexts, scratch)
    return out if symbols is out else out.copy_(symbols)


def _coding_device(symbols: Tensor) -> torch.device:
    """Where symbols are coded: the CPU, unless their own device has kernels, because the reference is plain Python."""
    here = symbols.device
    return here if here.type == "cuda" and has_triton(entropy.name) else torch.device("cpu")


def encode_with(
    kernels: EntropyKernels,
    symbols: Tensor,
    contexts: Tensor | None = None,
    num_contexts: int = 1,
    scratch: Scratch = fresh,
) -> list[Tensor]:
    """`encode` with the loops of one implementation."""
    if symbols.numel() == 0:
        return [symbols.new_empty(0)]
    symbols, contexts = symbols.contiguous(), None if contexts is None else contexts.contiguous()
    counts = kernels.histogram(symbols, contexts, num_contexts)
    tables = {c: Table.of(counts[c]) for c in np.flatnonzero(counts.any(1)).tolist()}
    frequencies = _stacked(tables, num_contexts)
    starts = starts_of(frequencies)
    rare = _escapes(tables, num_contexts)
    for c, table in tables.items():
        if table.escape is not None:
            rare[c] |= table.frequencies == 0
            frequencies[c, rare[c]], starts[c, rare[c]] = frequencies[c, table.escape], starts[c, table.escape]
    literals = symbols[:0]
    if rare.any():
        literals = symbols[kernels.find(symbols, contexts, rare, int(counts[rare].sum()))]
    coded = kernels.encode(symbols, contexts, frequencies, starts, scratch)
    heads = torch.frombuffer(bytearray(b"".join(table.write() for table in tables.values())), dtype=torch.uint8)
    return [heads.to(symbols.device), *coded, literals]


def decode_with(
    kernels: EntropyKernels,
    stream: Tensor,
    out: Tensor,
    contexts: Tensor | None = None,
    num_contexts: int = 1,
    scratch: Scratch = fresh,
) -> Tensor:
    """`decode` with the loops of one implementation."""
    n = out.numel()
    if n == 0:
        return out
    contexts = None if contexts is None else contexts.contiguous()
    occurring = [0] if contexts is None else np.flatnonzero(kernels.histogram(contexts, None, 1)).tolist()
    tables, place = _read_tables(stream, occurring)
    blocks = math.ceil(n / BLOCK)
    sizes, place = _part(stream, place, blocks, torch.int32)
    states, place = _part(stream, place, blocks * lanes_of(n), torch.int32)
    words, place = _part(stream, place, int(sizes.sum()), torch.int16, scratch, spare=LANES)
    kernels.decode(out, contexts, _stacked(tables, num_contexts), sizes, states, words)
    if literals := stream.numel() - place:
        out[kernels.find(out, contexts, _escapes(tables, num_contexts), literals)] = stream[place:]
    return out


def _read_tables(stream: Tensor, contexts: list[int]) -> tuple[Tables, int]:
    """The tables of these contexts from the front of a stream, and how many bytes they take."""
    heads, tables, place = stream[: MOST_BYTES * len(contexts)].cpu().numpy(), Tables(), 0
    for c in contexts:
        tables[c], size = Table.read(heads[place:])
        place += size
    return tables, place


def _part(
    stream: Tensor, place: int, number: int, dtype: torch.dtype, scratch: Scratch = fresh, spare: int = 0
) -> tuple[Tensor, int]:
    """``number`` items from ``place`` on, in aligned memory with room for ``spare`` more, and where they end."""
    end = place + number * dtype.itemsize
    part = scratch("words", (number + spare,), dtype, stream.device)
    part[:number].view(torch.uint8).copy_(stream[place:end])
    return part, end


def _stacked(tables: Tables, num_contexts: int) -> Counts:
    """The frequencies of all contexts, ``[num_contexts, 256]``; zeros where a context does not occur."""
    frequencies = np.zeros((num_contexts, 256), np.int64)
    for c, table in tables.items():
        frequencies[c] = table.frequencies
    return frequencies


def _escapes(tables: Tables, num_contexts: int) -> Marks:
    """Which symbol of each context is its escape symbol."""
    marked = np.zeros((num_contexts, 256), np.bool_)
    for c, table in tables.items():
        if table.escape is not None:
            marked[c, table.escape] = True
    return marked
