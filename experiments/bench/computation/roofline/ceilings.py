"""What a machine can do at most: arithmetic in registers, its library's products, copies of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fsdp_lab.measure.peak import peak_flops

_SIZES = (512, 1024, 2048)  # of square products
_COPIED = 256 << 20  # bytes, more than caches hold
_TIMES = 5


@dataclass(frozen=True)
class Ceilings:
    """``flops``: of the device in the dtype, a second, and ``source`` how that is known; None where it is not.

    ``product``: FLOP/s of the best square product of random numbers, ``product_size`` its side. ``copied``: bytes read
    and written a second by a copy of 256 MiB into memory that was used before.
    """

    flops: float | None
    source: str | None
    product: float
    product_size: int
    copied: float

    def higher(self, other: Ceilings) -> Ceilings:
        """The higher of two measurements of the same machine, each figure by itself."""
        known = [flops for flops in (self.flops, other.flops) if flops is not None]
        best = max(self, other, key=lambda ceilings: ceilings.product)
        return Ceilings(
            max(known, default=None), self.source, best.product, best.product_size, max(self.copied, other.copied)
        )


def measured(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measure all of them, which takes some seconds on two cores."""
    peak = peak_flops(device, dtype)
    rates = {size: _product(device, dtype, size) for size in _SIZES}
    best = max(rates, key=lambda size: rates[size])
    source = torch.ones(_COPIED, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copied = 2 * _COPIED / fastest(lambda: target.copy_(source), device)
    return Ceilings(peak.flops, peak.source, rates[best], best, copied)


def fastest(work: Callable[[], object], device: torch.device) -> float:
    """The seconds of the fastest of a few turns of ``work``."""
    seconds = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _product(device: torch.device, dtype: torch.dtype, size: int) -> float:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    result = torch.empty_like(a)
    return 2 * size**3 / fastest(lambda: torch.mm(a, b, out=result), device)
