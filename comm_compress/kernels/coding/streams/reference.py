"""Whole rANS streams: tables in numpy, and the loops over all symbols by one implementation of `entropy`."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.coding.entropy import reference as entropy
from comm_compress.kernels.coding.entropy.interface import EntropyKernels
from comm_compress.kernels.coding.frequencies import MOST_BYTES, Counts, Marks, Table, starts_of
from comm_compress.kernels.coding.rans_stream import LANES, SIZE_BITS, block_from, block_on, halvings_of, lanes_of
from comm_compress.kernels.tools.scratch import Scratch, fresh

Tables = dict[int, Table]
"""A table of frequencies for every context that occurs."""


def encode(symbols: Tensor, out: Tensor, scratch: Scratch) -> int:
    return joined(encode_with(entropy, symbols, scratch=scratch), symbols, out)


def decode(stream: Tensor, symbols: Tensor, scratch: Scratch, front: Tensor | None = None) -> None:
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
    block: int | None = None,
) -> list[Tensor]:
    """`encode` with the loops of one implementation, and blocks of so many symbols; None: as the device has them."""
    if symbols.numel() == 0:
        return [symbols.new_empty(0)]
    block = block or block_on(symbols.device, symbols.numel())
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
    sizes, *coded = kernels.encode(symbols, contexts, frequencies, starts, scratch, block)
    if halvings := halvings_of(block):
        sizes[SIZE_BITS // 8] = halvings
    heads = torch.frombuffer(bytearray(b"".join(table.write() for table in tables.values())), dtype=torch.uint8)
    return [heads.to(symbols.device), sizes, *coded, literals]


def decode_with(
    kernels: EntropyKernels,
    stream: Tensor,
    out: Tensor,
    contexts: Tensor | None = None,
    num_contexts: int = 1,
    scratch: Scratch = fresh,
) -> Tensor:
    """`decode` with the loops of one implementation. ValueError where this cannot be a stream of so many symbols."""
    n = out.numel()
    if n == 0:
        return out
    contexts = None if contexts is None else contexts.contiguous()
    occurring = [0] if contexts is None else np.flatnonzero(kernels.histogram(contexts, None, 1)).tolist()
    tables, place, halvings = _read_tables(stream, occurring)
    block = block_from(halvings)
    blocks = math.ceil(n / block)
    sizes, place = _part(stream, place, blocks, torch.int32)
    if halvings:
        sizes[0] -= halvings << SIZE_BITS
    lengths = sizes.cpu()
    if not 0 <= int(lengths.min()) <= int(lengths.max()) <= min(n, block):  # a symbol puts out one word at most
        raise ValueError(f"a rANS stream has a block of {min(n, block)} symbols in more words than that: it is damaged")
    states, place = _part(stream, place, blocks * lanes_of(n), torch.int32)
    words, place = _part(stream, place, int(lengths.sum()), torch.int16, scratch, spare=LANES)
    kernels.decode(out, contexts, _stacked(tables, num_contexts), sizes, states, words, block)
    literals, escapes = stream.numel() - place, _escapes(tables, num_contexts)
    if literals or escapes.any():
        out[kernels.find(out, contexts, escapes, literals)] = stream[place:]
    return out


def _read_tables(stream: Tensor, contexts: list[int]) -> tuple[Tables, int, int]:
    """The tables of these contexts from the front of a stream, how many bytes they take, and how blocks are halved."""
    heads, tables, place = stream[: MOST_BYTES * len(contexts) + SIZE_BITS // 8 + 1].cpu().numpy(), Tables(), 0
    for c in contexts:
        tables[c], size = Table.read(heads[place:])
        place += size
    return tables, place, int(heads[place + SIZE_BITS // 8])


def _part(
    stream: Tensor, place: int, number: int, dtype: torch.dtype, scratch: Scratch = fresh, spare: int = 0
) -> tuple[Tensor, int]:
    """``number`` items from ``place`` on, in aligned memory with room for ``spare`` more, and where they end."""
    end = place + number * dtype.itemsize
    if end > stream.numel():
        raise ValueError(f"a rANS stream does not end within its {stream.numel()} bytes")
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
