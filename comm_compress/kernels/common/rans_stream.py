"""Static rANS over bytes: the stream, and all of its coding but the loops over symbols (`reference.entropy` first).

rANS (Duda, arXiv 1311.2540), range variant: a state x in [2^16, 2^32) absorbs symbol s of frequency f, out of
2^12, by ``x = (x // f) * 2^12 + x % f + start``, after its low 16 bits were put out if it would have grown beyond 32.

Symbol i of a block belongs to state ``i % S``, so that symbols come in groups of one for each state: the lanes of a
vector, or of a warp. Groups are encoded last to first; states that put out words in the same group do so in
ascending order. A decoder goes through the groups first to last, and through the words from the last one back.

The frequencies may depend on a context of each symbol that both sides know: one table a context. Stream, little
endian:

    tables                  one a context that occurs, see `frequencies.Table.write`
    uint32 [blocks]         16-bit words of each block of 2^17 symbols
    uint32 [blocks, S]      states to start decoding each block from; S is 32, in streams of fewer than 2^15 symbols 4
    uint16 [...]            words, block after block
    uint8 [...]             literals: what the tables' escape symbols stand for, in order

Cost beyond the entropy: about 100 bytes a block (its size, and of each state three bytes out of four), and 2 bytes for
each symbol in use in each table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from comm_compress.kernels.common.frequencies import MOST_BYTES, Counts, Table, starts_of
from comm_compress.kernels.common.scratch import Scratch, fresh

LANES, FEW = 32, 4  # states of a block
MANY = 1 << 15  # symbols that are worth so many states
BLOCK = 1 << 17  # symbols coded independently of others: what a thread takes, or a warp
LOWEST = 1 << 16  # smallest state

Marks = npt.NDArray[np.bool_]


class Loops(NamedTuple):
    """What an implementation provides: the loops over all symbols, wherever they are.

    Symbols and contexts are uint8 ``[n]``; frequencies, starts and marks are small arrays ``[contexts, 256]``.
    """

    histogram: Callable[[Tensor, Tensor | None, int], Counts]
    """How often each symbol occurs in each of so many contexts."""
    find: Callable[[Tensor, Tensor | None, Marks, int], Tensor]
    """int64, ascending: positions of the symbols that are marked for their context; so many of them."""
    encode: Callable[[Tensor, Tensor | None, Counts, Counts, Scratch], list[Tensor]]
    """From frequencies and starts, as bytes: the sizes of all blocks, their states, and their words in any parts."""
    decode: Callable[[Tensor, Tensor | None, Counts, Tensor, Tensor, Tensor], None]
    """Write symbols, from their contexts and frequencies, and the sizes, states (both int32) and words (int16).

    After the words lies room for a vector of them, which may be read.
    """


def lanes_of(n: int) -> int:
    """How many states each block of a stream of ``n`` symbols has."""
    return LANES if n >= MANY else FEW


def rans_encode(
    loops: Loops,
    symbols: Tensor,
    contexts: Tensor | None = None,
    num_contexts: int = 1,
    scratch: Scratch = fresh,
) -> list[Tensor]:
    """The stream of ``symbols`` uint8 ``[n]``: its parts in order, uint8.

    ``contexts`` uint8 ``[n]``, each below ``num_contexts``: which table a symbol is coded with. Parts may lie in
    memory of ``scratch``.
    """
    if symbols.numel() == 0:
        return [symbols.new_empty(0)]
    symbols, contexts = symbols.contiguous(), None if contexts is None else contexts.contiguous()
    counts = loops.histogram(symbols, contexts, num_contexts)
    tables = {c: Table.of(counts[c]) for c in np.flatnonzero(counts.any(1)).tolist()}
    frequencies = _stacked(tables, num_contexts)
    starts = starts_of(frequencies)
    rare = _marked(tables, num_contexts)
    for c, table in tables.items():
        if table.escape is not None:
            rare[c] |= table.frequencies == 0
            frequencies[c, rare[c]], starts[c, rare[c]] = frequencies[c, table.escape], starts[c, table.escape]
    literals = symbols[:0]
    if rare.any():
        literals = symbols[loops.find(symbols, contexts, rare, int(counts[rare].sum()))]
    coded = loops.encode(symbols, contexts, frequencies, starts, scratch)
    heads = torch.frombuffer(bytearray(b"".join(table.write() for table in tables.values())), dtype=torch.uint8)
    return [heads.to(symbols.device), *coded, literals]


def rans_decode(
    loops: Loops,
    stream: Tensor,
    out: Tensor,
    contexts: Tensor | None = None,
    num_contexts: int = 1,
    scratch: Scratch = fresh,
) -> Tensor:
    """``out`` uint8 ``[n]``, contiguous: the symbols again, from the same contexts."""
    n = out.numel()
    if n == 0:
        return out
    contexts = None if contexts is None else contexts.contiguous()
    occurring = [0] if contexts is None else np.flatnonzero(loops.histogram(contexts, None, 1)).tolist()
    heads, tables, place = stream[: MOST_BYTES * len(occurring)].cpu().numpy(), {}, 0
    for c in occurring:
        tables[c], size = Table.read(heads[place:])
        place += size
    blocks = math.ceil(n / BLOCK)
    sizes, place = _part(stream, place, blocks, torch.int32)
    states, place = _part(stream, place, blocks * lanes_of(n), torch.int32)
    words, place = _part(stream, place, int(sizes.sum()), torch.int16, scratch, spare=LANES)
    loops.decode(out, contexts, _stacked(tables, num_contexts), sizes, states, words)
    if literals := stream.numel() - place:
        out[loops.find(out, contexts, _marked(tables, num_contexts), literals)] = stream[place:]
    return out


def _part(
    stream: Tensor, place: int, number: int, dtype: torch.dtype, scratch: Scratch = fresh, spare: int = 0
) -> tuple[Tensor, int]:
    """So many items from there on, in aligned memory with room for ``spare`` more, and where they end."""
    end = place + number * dtype.itemsize
    part = scratch("words", (number + spare,), dtype, stream.device)
    part[:number].view(torch.uint8).copy_(stream[place:end])
    return part, end


def as_bytes(numbers: npt.NDArray[np.unsignedinteger]) -> Tensor:
    """The same memory as uint8."""
    return torch.from_numpy(numbers.view(np.uint8))


def _stacked(tables: dict[int, Table], num: int) -> Counts:
    frequencies = np.zeros((num, 256), np.int64)
    for c, table in tables.items():
        frequencies[c] = table.frequencies
    return frequencies


def _marked(tables: dict[int, Table], num: int) -> Marks:
    """The escape symbols."""
    marked = np.zeros((num, 256), np.bool_)
    for c, table in tables.items():
        if table.escape is not None:
            marked[c, table.escape] = True
    return marked
