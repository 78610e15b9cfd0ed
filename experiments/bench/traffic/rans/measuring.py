"""Every coder on the same symbols in turn, by the clock, and what comes back compared with what went in."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.bench.traffic.rans.coders import Coder

SYMBOLS = {"ecsq, step 1.4": 1 / 1.4, "a grid": 0.4, "int8": 36.0}  # standard deviations of whole numbers
SPARE = 1 << 20  # bytes that a peer's stream may be longer than its symbols


class CoderTimes(NamedTuple):
    """Medians of one coder on one kind of symbols; ``seconds_*`` for all of them."""

    symbols: str
    coder: str
    encode_ns: float
    decode_ns: float
    encode_memcpy: float
    decode_memcpy: float
    bits: float


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
