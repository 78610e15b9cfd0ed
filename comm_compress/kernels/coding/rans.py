"""Entropy coding by static rANS; `rans_stream` defines the stream.

The loops over all symbols are kernels (`entropy`), put together in `streams.reference`: the device sees the
symbols, the CPU the tables of frequencies. A stream without contexts that one thread of a CPU codes, or a GPU, is one
call (`streams`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.coding.entropy import entropy
from comm_compress.kernels.coding.rans_stream import front_bytes as front_bytes
from comm_compress.kernels.coding.streams import streams
from comm_compress.kernels.coding.streams.reference import decode_with, encode_with, joined
from comm_compress.kernels.dispatch import has_triton
from comm_compress.kernels.tools.scratch import Scratch, fresh
from comm_compress.kernels.tools.threads import shared_out


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


def encode_into(symbols: Tensor, out: Tensor, scratch: Scratch = fresh) -> int:
    """Write the stream of ``symbols`` to the front of ``out``, both uint8 ``[n]`` and contiguous, if it is shorter.

    Returns its bytes; 0 where they are no fewer than the symbols, or there are none.
    """
    if symbols.numel() == 0:
        return 0
    if _in_one_call(symbols):
        return streams(symbols).encode(symbols, out, scratch)
    return joined(encode(symbols, scratch=scratch), symbols, out)


def decode_into(stream: Tensor, out: Tensor, scratch: Scratch = fresh, front: Tensor | None = None) -> None:
    """Write to ``out`` uint8 ``[n]``, contiguous, the symbols that `encode_into` was given.

    ``front`` are the first bytes of ``stream`` on the CPU, `front_bytes` of them or all, where they are known already.
    """
    if out.numel() and _in_one_call(out):
        streams(out).decode(stream, out, scratch, front)
    else:
        decode(stream, out, scratch=scratch)


def _in_one_call(symbols: Tensor) -> bool:
    if symbols.device.type == "cpu":
        return not shared_out(symbols.numel())
    return symbols.device.type == "cuda" and has_triton(streams.folder)


def _coding_device(symbols: Tensor) -> torch.device:
    """Where symbols are coded: the CPU, unless their own device has kernels, because the reference is plain Python."""
    here = symbols.device
    return here if here.type == "cuda" and has_triton(entropy.folder) else torch.device("cpu")
