"""What FSDP2's and DDP's own collectives send in an optimizer step, computed from the sizes of what they carry."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from comm_compress.core.encoded import ByteCount
from comm_compress.core.ledger import Collective, Ledger, Op
from comm_compress.drive.wire_bytes import Moved, gloo_bytes, ring_bytes


class _Call(NamedTuple):
    """One stock collective of ``elements`` of ``itemsize`` bytes over ``world`` ranks, ``times`` a micro-batch."""

    op: Op
    unit: str
    elements: int
    itemsize: int
    world: int
    times: int = 1


class StockSteps:
    """Enters them in ``ledger``, micro-batch by micro-batch. Their time is not known: backward and they overlap."""

    def __init__(self, device: torch.device) -> None:
        self.ledger = Ledger()
        self._device = device
        self._gathers: list[_Call] = []
        self._reductions: list[_Call] = []

    @property
    def has_any(self) -> bool:
        """Is there a stock collective of FSDP2 or DDP?"""
        return bool(self._gathers or self._reductions)

    def add_gathers(self, module: nn.Module, itemsize: int, reshards: bool) -> None:
        """FSDP2's all-gathers of parameters; ``reshards``: it gathers blocks again for backward."""
        for unit, parameters in _units(module).items():
            world, _ = _mesh_of(parameters)
            times = 2 if reshards and unit != "root" else 1
            self._gathers.append(_Call("all_gather", unit, _padded(parameters), itemsize, world, times))

    def add_reductions(self, module: nn.Module, itemsize: int) -> None:
        """FSDP2's reduce-scatters of gradients and, between replicas, its all-reduces of their shards."""
        for unit, parameters in _units(module).items():
            world, replicas = _mesh_of(parameters)
            elements = _padded(parameters)
            self._reductions.append(_Call("reduce_scatter", unit, elements, itemsize, world))
            self._reductions.append(_Call("all_reduce", unit, elements // world, itemsize, replicas))

    def add_replicas(self, ddp: DistributedDataParallel) -> None:
        """Count the all-reduces of gradients that ``ddp`` makes in backward, of all its trainable parameters."""
        elements = sum(p.numel() for p in ddp.module.parameters() if p.requires_grad)
        self._reductions.append(_Call("all_reduce", "buckets", elements, 4, ddp.process_group.size()))

    def micro_batch(self, reduces: bool) -> None:
        """A micro-batch has gone forward and backward; ``reduces``: its gradients were exchanged."""
        for call in [*self._gathers, *(self._reductions if reduces else ())]:
            if call.world > 1:
                for _ in range(call.times):
                    self._enter(call)

    def _enter(self, call: _Call) -> None:
        others = call.world - 1
        size = call.elements * call.itemsize
        if call.op == "all_gather":  # each rank's call has its shard
            moved = Moved(call.op, size // call.world, call.world, 0)
            messages, halves = 2 * others, 1
        else:
            moved = Moved(call.op, size, call.world, 0)
            messages, halves = 4 * others, 2 if call.op == "all_reduce" else 1
        sent = (gloo_bytes if self._device.type == "cpu" else ring_bytes)(moved)
        collective = Collective(self._device)
        collective.charge(ByteCount(values=sent), messages)
        self.ledger.add(
            call.op, call.unit, collective, halves * others * call.elements // call.world, call.itemsize, None, 1
        )


def _units(module: nn.Module) -> dict[str, list[DTensor]]:
    """The parameters of each FSDP2 unit: those of a module that no module within it has."""
    sharded = [(name or "root", one) for name, one in module.named_modules() if isinstance(one, FSDPModule)]
    seen: set[int] = set()
    units: dict[str, list[DTensor]] = {}
    for name, one in reversed(sharded):  # what lies within comes behind
        own = [p for p in one.parameters() if id(p) not in seen and isinstance(p, DTensor)]
        seen |= {id(p) for p in own}
        if own:
            units[name] = own
    return units


def _mesh_of(parameters: list[DTensor]) -> tuple[int, int]:
    """How many ranks share one copy, and how many copies there are."""
    mesh = parameters[0].device_mesh
    return int(mesh.size(mesh.ndim - 1)), int(mesh.size(0)) if mesh.ndim > 1 else 1


def _padded(parameters: list[DTensor]) -> int:
    """The elements of whole parameters as FSDP2 lays them out: as many rows on each rank."""
    world, _ = _mesh_of(parameters)
    return sum(-(-p.shape[0] // world) * world * (p.numel() // p.shape[0]) for p in parameters)
