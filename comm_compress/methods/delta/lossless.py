"""Parameters as changes, bit for bit.

Compare PULSESync, 2026, arXiv 2602.03839.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.encoded import ByteCount, RaggedRow, size_of
from comm_compress.core.state import State
from comm_compress.methods.delta.changes import Change, Delta, same_bits
from comm_compress.wrappers.entropy import bytes_of, tensor_of

SYMBOL_HEAD = struct.Struct("<I")  # bytes of the coded symbols
LEAST = 1024  # elements that a table of frequencies is worth


class LosslessDelta(Delta):
    """The distance of each element from its old value in ulps, entropy coded given the old exponent.

    One optimizer step moves most bf16 weights by a few ulps or not at all, and how many depends on the weight's
    exponent, which the receiver knows. Distances become symbols and raw
    bits (`kernels.coding.ulp.interface`); symbols go through rANS with one table for each exponent, rare exponents
    together. Bit for bit, whatever the bits. Bits an element follow from the learning rate: for
    N(0, 0.02) bf16 weights and updates of rms 0.3 lr, 3.7 at lr 6e-4, 1.7 at 1e-4, 0.4 at 1e-5. float32
    rows work too, but their masters move by thousands of ulps: 15 bits and more.

    A change that takes more bytes than the row is sent as the row.
    """

    traits = replace(Delta.traits, lossless=True, unbiased=True)

    def _unchanged(self, row: Tensor, replica: Tensor, state: State) -> bool:
        return same_bits(row, replica)

    def _change(self, row: Tensor, expected: Tensor, state: State) -> Change | None:
        symbols, raw_bits = kernels.ulp(row).difference(expected, row.contiguous(), state.scratch)
        coded = kernels.rans.encode(symbols, *_contexts(expected, state), state.scratch)
        values = [*coded, raw_bits]
        if SYMBOL_HEAD.size + size_of(values) >= row.nbytes:
            return None
        head = tensor_of(SYMBOL_HEAD.pack(size_of(coded)), row.device)
        message = RaggedRow([head, *values], ByteCount(values=size_of(values), metadata=SYMBOL_HEAD.size))
        return Change(message, lambda replica: replica.copy_(row))

    def _advance(self, replica: Tensor, data: Tensor, rank: int, state: State) -> None:
        (size,) = SYMBOL_HEAD.unpack(bytes_of(data[: SYMBOL_HEAD.size]))
        end = SYMBOL_HEAD.size + size
        symbols = state.scratch("symbols", tuple(replica.shape), torch.uint8, replica.device)
        kernels.rans.decode(data[SYMBOL_HEAD.size : end], symbols, *_contexts(replica, state), state.scratch)
        kernels.ulp(replica).apply(replica, symbols, data[end:])


def _contexts(replica: Tensor, state: State) -> tuple[Tensor, int]:
    """Return which table each element goes by (uint8 ``[n]``), and how many tables there are.

    Exponents in descending order; neighbours share a table until it has `LEAST` elements.
    """
    table, held = 0, 0
    tables = [0] * 256
    for exponent, count in reversed(list(enumerate(kernels.ulp(replica).exponent_counts(replica).tolist()))):
        if held >= LEAST and count:
            table, held = table + 1, 0
        tables[exponent] = table
        held += count
    contexts = state.scratch("contexts", tuple(replica.shape), torch.uint8, replica.device)
    of_exponents = torch.tensor(tables, dtype=torch.uint8, device=replica.device)
    return kernels.ulp(replica).by_exponent(replica, of_exponents, contexts), table + 1
