"""What torch's own collectives send, entered in a ledger beside what ours do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from comm_compress.core.encoded import ByteCount
from comm_compress.core.ledger import Collective, Ledger, Op
from comm_compress.drive.wire_bytes import Moved, gloo_bytes, ring_bytes


class StockCounts:
    """Counts torch's own collectives of one operation and unit in ``ledger``, as ``rank`` of ``world`` makes them.

    Bytes are computed from shapes and from what gloo does with CPU tensors (`wire_bytes`); elsewhere they are those of
    a ring. Time is that of the call.
    """

    def __init__(self, ledger: Ledger, op: Op, unit: str, rank: int, world: int) -> None:
        self._ledger, self._op, self._unit, self._rank, self._world = ledger, op, unit, rank, world

    def all_reduce(self, x: Tensor, run: Callable[[], Tensor]) -> Tensor:
        """Return what ``run``, an all-reduce of ``x``, gives."""
        world = self._world
        return self._counted("all_reduce", x, 2 * (world - 1) * x.numel() // world, run, 4 * (world - 1), 2)

    def all_gather(self, x: Tensor, dim: int, sizes: Sequence[int] | None, run: Callable[[], Tensor]) -> Tensor:
        """Return what ``run``, an all-gather of ``x`` along ``dim`` (by broadcasts where ``sizes`` differ), gives."""
        world, rank = self._world, self._rank
        elements = (world - 1) * x.numel()
        if sizes is None:
            return self._counted("all_gather", x, elements, run, 2 * (world - 1), 1)
        row = x.numel() // max(1, x.shape[dim]) * x.itemsize if x.shape[dim] else 0
        parts = [Moved("broadcast", size * row, world, rank, root=root) for root, size in enumerate(sizes)]
        return self._entered(x, elements, sum(map(self._bytes_of(x), parts)), run, world - 1, 1)

    def reduce_scatter(self, x: Tensor, run: Callable[[], Tensor]) -> Tensor:
        """Return what ``run``, a reduce-scatter of ``x``, gives."""
        world = self._world
        return self._counted("reduce_scatter", x, (world - 1) * x.numel() // world, run, 4 * (world - 1), 1)

    def message(self, x: Tensor) -> None:
        """Enter that ``x`` is sent to one other rank; when it arrives is not known here."""
        collective = Collective(x.device)
        collective.charge(ByteCount(values=x.numel() * x.itemsize), 1)
        self._ledger.add(self._op, self._unit, collective, x.numel(), x.itemsize, None, 1)

    def _counted(
        self, kind: str, x: Tensor, elements: int, run: Callable[[], Tensor], messages: float, rounds: int
    ) -> Tensor:
        moved = Moved(kind, x.numel() * x.itemsize, self._world, self._rank)
        return self._entered(x, elements, self._bytes_of(x)(moved), run, messages, rounds)

    def _entered(
        self, x: Tensor, elements: int, sent: int, run: Callable[[], Tensor], messages: float, rounds: int
    ) -> Tensor:
        collective = Collective(x.device)
        start = collective.now()
        result = run()
        collective.spent("wire", start)
        collective.charge(ByteCount(values=sent), messages)
        self._ledger.add(self._op, self._unit, collective, elements, x.itemsize, None, rounds)
        return result

    def _bytes_of(self, x: Tensor) -> Callable[[Moved], int]:
        return gloo_bytes if x.device == torch.device("cpu") else ring_bytes
