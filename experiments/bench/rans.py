"""How fast rANS codes a stream of bytes on one core, beside the fastest coder of its kind and a plain copy.

    python -m experiments.bench.rans [--mib 16] [--repeats 9] [--peer libhtscodecs.so] [--json FILE]

``--peer`` is a shared library of htscodecs (https://github.com/samtools/htscodecs, the coder of CRAM files): rANS with
32 states of 16 bits as well, in AVX2 and in AVX-512. Without the flag the environment variable HTSCODECS_LIBRARY is
asked; without either, ours is measured alone. All take turns, stream by stream, so that noise hits them alike; both
sides count symbols, make tables and write a whole stream.

The symbols are whole numbers from a Gaussian of some width, as the methods that end in rANS have them. Columns:
nanoseconds a symbol (medians), symbols a second over the bytes that a plain copy of as many float32 takes in (what
share of memcpy's speed is left if coding is all there is to do), and bits a symbol.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comm_compress.kernels import rans
from comm_compress.kernels.common.scratch import Scratch
from fsdp_lab.files.atomic import write_json
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.flag_values import real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

SYMBOLS = {"ecsq, step 1.4": 1 / 1.4, "a grid": 0.4, "int8": 36.0}  # standard deviations of whole numbers
VARIANTS = ("avx512", "avx2")  # of the peer's functions
SPARE = 1 << 20  # bytes that a peer's stream may be longer than its symbols
VARIABLE = "HTSCODECS_LIBRARY"


class Coder(NamedTuple):
    """Something that codes bytes: ``encode(symbols, out)`` gives the stream's bytes, at the front of ``out``."""

    name: str
    encode: Callable[[Tensor, Tensor], int]
    decode: Callable[[Tensor, Tensor], None]


class CoderTimes(NamedTuple):
    """Medians of one coder on one kind of symbols; ``seconds_*`` for all of them."""

    symbols: str
    coder: str
    encode_ns: float
    decode_ns: float
    encode_memcpy: float
    decode_memcpy: float
    bits: float


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


def made(deviation: float, n: int) -> Tensor:
    """Whole numbers from a Gaussian, clamped to int8, as bytes uint8 ``[n]``."""
    numbers = torch.randn(n, generator=torch.Generator().manual_seed(0)) * deviation
    return numbers.round_().clamp_(-127, 127).to(torch.int8).view(torch.uint8)


def measure(kind: str, coders: Sequence[Coder], n: int, repeats: int) -> list[CoderTimes]:
    """Every coder on one kind of symbols, in turn, and what comes back compared with what went in."""
    symbols, back = made(SYMBOLS[kind], n), torch.empty(n, dtype=torch.uint8)
    source, target = torch.zeros(n), torch.ones(n)
    outs = [torch.zeros(n + SPARE, dtype=torch.uint8) for _ in coders]
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in coders]
    copies, sizes = list[float](), [0 for _ in coders]
    for repeat in range(repeats + 1):
        for i, (coder, out) in enumerate(zip(coders, outs, strict=True)):
            copies.append(_seconds(lambda: target.copy_(source)))
            start = time.perf_counter()
            sizes[i] = coder.encode(symbols, out)
            encoded = time.perf_counter() - start
            back.zero_()
            decoded = _seconds(lambda coder=coder, out=out, i=i: coder.decode(out[: sizes[i]], back))  # type: ignore[misc]
            if not torch.equal(back, symbols):
                raise RuntimeError(f"{coder.name} gives other symbols back than it was given")
            if repeat:  # the first compiles, and warms memory up
                times[i][0].append(encoded)
                times[i][1].append(decoded)
    copy = statistics.median(copies)
    rows = []
    for coder, size, pair in zip(coders, sizes, times, strict=True):
        encode, decode = (statistics.median(seconds) for seconds in pair)
        speeds = 1e9 * encode / n, 1e9 * decode / n, copy / encode, copy / decode
        rows.append(CoderTimes(kind, coder.name, *speeds, 8 * size / n))
    return rows


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def table(rows: Sequence[CoderTimes]) -> str:
    """The rows as a table in Markdown."""
    heads = "| symbols | coder | encode, ns | decode, ns | encode, x memcpy | decode, x memcpy | bits |"
    lines = [
        f"| {r.symbols} | {r.coder} | {r.encode_ns:.2f} | {r.decode_ns:.2f} | {r.encode_memcpy:.2f} | "
        f"{r.decode_memcpy:.2f} | {r.bits:.3f} |"
        for r in rows
    ]
    return "\n".join([heads, "| --- | --- | ---: | ---: | ---: | ---: | ---: |", *lines])


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed flags. ValueError for values that make no sense."""
    parser = program("experiments.bench.rans", __doc__)
    parser.add_argument("--mib", type=real(above=0), default=16.0, help="size of the stream, 2^20 symbols each")
    parser.add_argument("--repeats", type=whole(1), default=9)
    parser.add_argument(
        "--peer", type=Path, default=os.environ.get(VARIABLE) or None, metavar="FILE", help="libhtscodecs.so"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")
    options: argparse.Namespace = parser.parse_args(arguments)
    if options.peer is not None:
        options.peer = Path(options.peer)
        if not options.peer.is_file():
            raise ValueError(f"--peer: there is no file {options.peer}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise ValueError(f"--json: the folder of {options.json} does not exist")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all coders on each kind of symbols, print the table, write it where asked; returns the exit code."""
    with user_errors("bench_rans"):
        options = parsed(arguments)
        coders = [ours(), *(peers(options.peer) if options.peer is not None else [])]
    torch.set_num_threads(1)
    n = int(options.mib * (1 << 20))
    rows = [row for kind in SYMBOLS for row in measure(kind, coders, n, options.repeats)]
    print(table(rows))
    if options.json is not None:
        known = hardware()
        del known["host"]
        machine = {"machine": known, "versions": versions()}
        write_json(options.json, {**machine, "symbols": n, "rows": [row._asdict() for row in rows]})
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main())
