"""FSDP2's parameters on their way while the unit before them computes, where FSDP2 does not see to it: on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from comm_compress import _compat


class Prefetch:
    """Every FSDP2 unit on a CPU gathers its parameters while the unit before it computes, until `undo`.

    FSDP2 prefetches on CUDA streams; on a CPU it waits for each unit's all-gather. This turns its asynchronous
    all-gathers on, with which its prefetching in backward works on a CPU too, and has each unit ask for the next one's
    parameters in forward, in the order that the first forward shows. No number changes. It takes the memory of one
    more gathered unit. Units for which the user has set a forward prefetch keep it. What was prefetched and not
    used is dropped when the forward ends (only delta remembers it: it sent that change a step earlier). Units on
    other devices are left alone.
    """

    def __init__(self, model: nn.Module) -> None:
        units = [m for m in model.modules() if isinstance(m, FSDPModule) and _on_cpu(m)]
        self._before = [(g, g.unshard_async_op) for unit in units for g in _compat.param_groups(unit)]
        for group, _ in self._before:
            group.unshard_async_op = True
        self._ours = {unit for unit in units if not _compat.forward_prefetch(unit)}
        inner = {module for unit in units for module in _inside(unit)}
        self._hooks = [self._watch(unit, units) for unit in units if unit not in inner]

    def undo(self) -> None:
        """FSDP2's own behaviour again."""
        for hook in self._hooks:
            hook.remove()
        for group, value in self._before:
            group.unshard_async_op = value
        for unit in self._ours:
            unit.set_modules_to_forward_prefetch([])

    def _watch(self, outermost: Any, units: Sequence[FSDPModule]) -> Any:
        """After each forward of ``outermost`` drop what nobody used; after the first, learn the order."""
        here = {outermost, *_inside(outermost)}
        groups = [group for unit in units if unit in here for group in _compat.param_groups(unit)]
        learnt = False

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def after_forward(module: Any, inputs: Any, output: Any) -> None:
            nonlocal learnt
            if _compat.in_backward():  # activation checkpointing repeats a forward there
                return
            for group in groups:
                _compat.drop_pending_gather(group)
            if not learnt:
                learnt = self._learn(_in_order_of_use(_compat.last_forward(module)))

        return outermost.register_forward_hook(after_forward)

    def _learn(self, order: Sequence[FSDPModule]) -> bool:
        """Have each unit ask for the one behind it, if that is always the same; was there an order?"""
        followers: dict[FSDPModule, set[FSDPModule | None]] = {}
        for unit, follower in zip(order, [*order[1:], None], strict=True):
            followers.setdefault(unit, set()).add(follower)
        for unit, found in followers.items():
            if unit in self._ours and len(found) == 1 and (follower := found.pop()) is not None:
                unit.set_modules_to_forward_prefetch([follower])
        return len(order) > 1


def _on_cpu(unit: FSDPModule) -> bool:
    return all(group.device.type == "cpu" for group in _compat.param_groups(unit))


def _inside(unit: Any) -> set[Any]:
    """All modules in it, itself left out."""
    return set(unit.modules()) - {unit}


def _in_order_of_use(ended: Sequence[FSDPModule]) -> list[FSDPModule]:
    """From the order in which units ended to that in which they began: a unit before those inside it."""
    order: list[FSDPModule] = []
    for unit in ended:
        inside, place = _inside(unit), len(order)
        while place and order[place - 1] in inside:
            place -= 1
        order.insert(place, unit)
    return order
