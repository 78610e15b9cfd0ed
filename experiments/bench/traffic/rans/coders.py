"""Who codes bytes with rANS: our kernels, and functions of htscodecs."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.kernels.coding import rans
from comm_compress.kernels.tools.scratch import Scratch

VARIANTS = ("avx512", "avx2")  # of the peer's functions


class Coder(NamedTuple):
    """Something that codes bytes: ``encode(symbols, out)`` gives the stream's bytes, at the front of ``out``."""

    name: str
    encode: Callable[[Tensor, Tensor], int]
    decode: Callable[[Tensor, Tensor], None]


def ours() -> Coder:
    """One call for a whole stream, in memory that is taken once, as the collectives do it."""
    memory: dict[Any, Tensor] = {}

    def scratch(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        key = name, shape, dtype
        if key not in memory:
            memory[key] = torch.empty(shape, dtype=dtype, device=device)
        return memory[key]

    kept: Scratch = scratch

    def encode(symbols: Tensor, out: Tensor) -> int:
        return rans.encode_into(symbols, out[: symbols.numel()], kept)

    return Coder("ours", encode, lambda stream, out: rans.decode_into(stream, out, kept))


def peers(path: Path) -> list[Coder]:
    """The coders of a library of htscodecs. ValueError where it is none."""
    try:
        library = ctypes.CDLL(str(path.absolute()))
    except OSError as error:
        raise ValueError(f"--peer: {path} cannot be loaded: {error}") from error
    coders = []
    for variant in VARIANTS:
        names = [f"rans_{what}_O0_32x16_{variant}" for what in ("compress", "uncompress")]
        if all(hasattr(library, name) for name in names):
            compress, uncompress = (getattr(library, name) for name in names)
            compress.restype = uncompress.restype = ctypes.c_void_p
            encode, decode = functools.partial(_encode, compress), functools.partial(_decode, uncompress)
            coders.append(Coder(f"htscodecs {variant}", encode, decode))
    if not coders:
        raise ValueError(f"--peer: {path} has no function rans_compress_O0_32x16_avx2: is it htscodecs, for x86?")
    return coders


def _encode(function: Any, symbols: Tensor, out: Tensor) -> int:
    size = ctypes.c_uint(out.numel())
    into = ctypes.c_void_p(out.data_ptr())
    if not function(ctypes.c_void_p(symbols.data_ptr()), symbols.numel(), into, ctypes.byref(size)):
        raise RuntimeError("htscodecs did not encode the symbols")
    return size.value


def _decode(function: Any, stream: Tensor, out: Tensor) -> None:
    into = ctypes.c_void_p(out.data_ptr())
    if not function(ctypes.c_void_p(stream.data_ptr()), stream.numel(), into, out.numel()):
        raise RuntimeError("htscodecs did not decode its own stream")
