"""Whole rANS streams: tables in numpy, and the loops over all symbols by one implementation of `entropy`."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.common.frequencies import MOST_BYTES, Counts, Marks, Table, starts_of
from comm_compress.kernels.common.rans_stream import BLOCK, LANES, lanes_of
from comm_compress.kernels.common.scratch import Scratch, fresh
from comm_compress.kernels.interfaces.entropy import EntropyKernels
from comm_compress.kernels.reference import entropy

Tables = dict[int, Table]
"""A table of frequencies for every context that occurs."""


def encode(symbols: Tensor, out: Tensor, scratch: Scratch) -> int:
    return joined(encode_with(entropy, symbols, scratch=scratch), symbols, out)


def decode(stream: Tensor, symbols: Tensor, scratch: Scratch) -> None:
    decode_with(entropy, stream, symbols, scratch=scratch)


def joined(parts: list[Tensor], symbols: Tensor, out: Tensor) -> int:
    """Write a stream's parts to ``out``, as `StreamKernels.encode` does."""
    size = sum(part.numel() for part in parts)
    if size >= symbols.numel():
        return 0
    torch.cat(parts, out=out[:size])
    return size


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
