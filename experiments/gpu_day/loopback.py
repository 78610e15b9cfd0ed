"""A process group of two ranks in one process: the peer is this rank's twin, and what is sent to it comes back.

NCCL refuses two ranks on one GPU, and gloo would carry every message through the host. Here FSDP2 and compressors run
as for two ranks, on the streams that they choose, and a message is a copy on the device. So the times of encoding,
decoding and computing, and what of them overlaps, are a real rank's; the wire's are not, and neither is the model that
comes of it, because both halves of a gradient are the same rank's. (`experiments.bench.traffic.collectives.loopback`
answers the hooks alone, without FSDP2 and its streams.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future

WORLD = 2
NAME = "loopback"


class Loopback(dist.ProcessGroup):  # type: ignore[misc]
    """Rank 0 of `WORLD` ranks. Collectives are done when they return, enqueued in the current stream on CUDA.

    Both names of a collective that torch 2.13 renamed are here.
    """

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)
        self._rank, self._world = rank, world
        self._waiting: dict[tuple[int, int], list[Tensor]] = {}

    def size(self) -> int:
        """How many ranks the group pretends to have."""
        return self._world

    @property
    def group_name(self) -> str:
        """The name that torch has given this group."""
        return str(dist.distributed_c10d._world.pg_names[self])

    def getBackendName(self) -> str:  # noqa: N802
        """The name under which traces show the group's calls."""
        return NAME

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        """What is sent to ``peer`` is what this rank was waiting for from it."""
        waiting = self._waiting.get((peer, tag), [])
        for tensor in tensors:
            if not waiting:
                raise RuntimeError("loopback: a message that nobody waits for: post irecv before isend")
            waiting.pop(0).copy_(tensor)
        return _done()

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        """Wait for a message from ``peer``: `send` brings it."""
        self._waiting.setdefault((peer, tag), []).extend(tensors)
        return _done()

    def all_to_all_single(self, output: Tensor, rows: Tensor, *_: Any) -> Any:
        """Equal parts: that for rank r comes back as rank r's."""
        output.copy_(rows)
        return _done()

    def alltoall(self, outputs: list[Tensor], parts: list[Tensor], *_: Any) -> Any:
        """Parts of any lengths, as far as there is room for them."""
        for output, part in zip(outputs, parts, strict=True):
            n = min(output.numel(), part.numel())
            output.view(-1)[:n].copy_(part.view(-1)[:n])
        return _done()

    def all_gather_single(self, output: Tensor, row: Tensor, *_: Any) -> Any:
        """Every rank's row is this rank's."""
        for place in output.view(self._world, -1):
            if place.data_ptr() != row.data_ptr():
                place.copy_(row.view(-1))
        return _done()

    def allgather(self, outputs: list[list[Tensor]], rows: list[Tensor], *_: Any) -> Any:
        """The same, into a list for each row."""
        for places, row in zip(outputs, rows, strict=True):
            for place in places:
                place.copy_(row)
        return _done()

    def reduce_scatter_single(self, output: Tensor, rows: Tensor, options: Any = None) -> Any:
        """The row for rank r comes back as rank r's: a sum is that of this rank's own rows."""
        total = torch.sum(rows.view(self._world, -1), 0, dtype=rows.dtype)
        if _operation(options) == dist.ReduceOp.AVG:
            total = total / self._world
        output.view(-1).copy_(total)
        return _done()

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Any:
        """Sums are twice this rank's values; largest, smallest and mean are these."""
        for tensor in tensors if _operation(options) == dist.ReduceOp.SUM else ():
            tensor.mul_(self._world)
        return _done()

    def broadcast(self, tensors: list[Tensor], *_: Any) -> Any:
        """Nothing to do: the twin has the same."""
        return _done()

    def barrier(self, *_: Any) -> Any:
        """Return at once: there is nobody to wait for."""
        return _done()

    alltoall_base = all_to_all_single
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allreduce_coalesced = allreduce


@contextmanager
def joined() -> Iterator[None]:
    """Inside, the default process group is a `Loopback`."""
    if NAME not in dist.Backend.backend_list:
        make: Callable[..., Any] = lambda _store, rank, world, _timeout: Loopback(rank, world)  # noqa: E731
        dist.Backend.register_backend(NAME, make, devices=["cpu", "cuda"])
    dist.init_process_group(NAME, rank=0, world_size=WORLD, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _operation(options: Any) -> Any:
    return getattr(options, "reduceOp", dist.ReduceOp.SUM)


def _done() -> Any:
    future: Any = Future()
    future.set_result(None)  # a future that was made for the CPU refuses tensors of a GPU
    return _create_work_from_future(future)
