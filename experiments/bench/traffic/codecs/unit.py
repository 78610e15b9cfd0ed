"""What the codecs' benchmark measures on, and its clock: all that differs between a CPU and a GPU is here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from comm_compress.core.segments import segments_of
from comm_compress.core.state import State

SIDE = 256  # both sides of the unit's matrix are multiples: any number of ranks and every block size come out even
LEAST_MIB, MOST_MIB = 4 * SIDE**2 / (1 << 20), 1 << 16
T = TypeVar("T")


def timed(device: torch.device, call: Callable[[], T]) -> tuple[T, float]:
    """A call's result and its seconds: by the clock, on CUDA by events with the device idle before and after."""
    if device.type != "cuda":
        start = time.perf_counter()
        result = call()
        return result, time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    first.record()
    result = call()
    last.record()
    torch.cuda.synchronize(device)
    return result, first.elapsed_time(last) / 1e3


class Unit:
    """The gradient of one square weight (almost), float32: Gaussian times a log-normal scale for each column.

    ``matrix`` ``[a, b]``, the same for equal sizes. `copy_seconds` is the yardstick: a copy of other memory of this
    size, which also leaves nothing of the unit in the caches.
    """

    def __init__(self, mib: float, device: torch.device) -> None:
        if not LEAST_MIB <= mib <= MOST_MIB:
            raise ValueError(f"--mib: got {mib:g}, must be between {LEAST_MIB:g} and {MOST_MIB}")
        elements = int(mib * (1 << 18))
        a = 1 << (elements.bit_length() - 1) // 2
        self.device, self.shape = device, (a, elements // a // SIDE * SIDE)
        generator = torch.Generator().manual_seed(0)
        scale = torch.randn(self.shape[1], generator=generator).exp()
        self.matrix = torch.randn(self.shape, generator=generator).mul_(scale).to(device)
        self._source, self._target = self.matrix.clone(), torch.zeros_like(self.matrix)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows together, however many there are."""
        return self.matrix.nbytes

    def rows(self, world: int) -> Tensor:
        """``[world, n]``: row d belongs to rank d."""
        return self.matrix.view(world, -1)

    def state(self, world: int) -> State:
        """The state of rank 0 of ``world`` ranks, before its first collective."""
        return State("unit", 0, world, segments=segments_of([("weight", self.shape)], world))

    def copy_seconds(self) -> float:
        """The seconds of one plain copy of as many bytes."""
        return timed(self.device, lambda: self._target.copy_(self._source))[1]
