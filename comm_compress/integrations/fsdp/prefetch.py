"""FSDP2's parameters on their way while the unit before them computes, where FSDP2 does not see to it: on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from comm_compress.integrations.fsdp import _compat


class Prefetch:
    """Every FSDP2 unit on a CPU gathers its parameters while the units before it compute, until `undo`.

    FSDP2 prefetches on CUDA streams; on a CPU it waits for each unit's all-gather. This turns its asynchronous
    all-gathers on and has each unit ask for the parameters of the next ``ahead`` units, in forward and in backward, in
    the order that the first forward shows. No number changes. It takes the memory of ``ahead`` more gathered units.
    What the user has told a unit to prefetch stays. What was prefetched and not used is dropped when forward or
    backward ends (only delta remembers it: it sent that change a step earlier). Units on other devices are left alone.
    """

    def __init__(self, model: nn.Module, ahead: int) -> None:
        self._ahead = ahead
        units = [m for m in model.modules() if isinstance(m, FSDPModule) and _on_cpu(m)]
        self._before = [(g, g.unshard_async_op) for unit in units for g in _compat.param_groups(unit)]
        for group, _ in self._before:
            group.unshard_async_op = True
        self._forward = {unit for unit in units if not _compat.forward_prefetch(unit)}
        self._backward = {unit for unit in units if not _compat.backward_prefetch(unit)}
        inner = {module for unit in units for module in _inside(unit)}
        self._hooks = [self._watch(unit, units) for unit in units if unit not in inner]

    def undo(self) -> None:
        """Have FSDP2 gather as it did before."""
        for hook in self._hooks:
            hook.remove()
        for group, value in self._before:
            group.unshard_async_op = value
        for unit in self._forward:
            unit.set_modules_to_forward_prefetch([])
        for unit in self._backward:
            unit.set_modules_to_backward_prefetch([])

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
                learnt = self._learn(_compat.last_forward(module))

        return outermost.register_forward_hook(after_forward)

    def _learn(self, ended: Sequence[FSDPModule]) -> bool:
        """Tell each unit whom to prefetch, from the order in which units ended; was there one?"""
        for unit, following in self._followers(_in_order_of_use(ended)):
            if unit in self._forward:
                unit.set_modules_to_forward_prefetch(following)
        for unit, following in self._followers(ended[::-1]):
            if unit in self._backward and self._ahead > 1:  # one ahead FSDP2 does itself, as the graph has it
                unit.set_modules_to_backward_prefetch(following)
        return len(ended) > 1

    def _followers(self, order: Sequence[FSDPModule]) -> Iterator[tuple[FSDPModule, list[FSDPModule]]]:
        """Yield each unit with the next ``ahead`` ones, if they are the same wherever it occurs."""
        followers: dict[FSDPModule, set[tuple[FSDPModule, ...]]] = {}
        for number, unit in enumerate(order, 1):
            followers.setdefault(unit, set()).add(tuple(order[number : number + self._ahead]))
        yield from ((unit, list(following.pop())) for unit, following in followers.items() if len(following) == 1)


def _on_cpu(unit: FSDPModule) -> bool:
    return all(group.device.type == "cpu" for group in _compat.param_groups(unit))


def _inside(unit: Any) -> set[Any]:
    """Return all modules in it, itself left out."""
    return set(unit.modules()) - {unit}


def _in_order_of_use(ended: Sequence[FSDPModule]) -> list[FSDPModule]:
    """Sort units by when they began, from when they ended: a unit comes before those inside it."""
    order: list[FSDPModule] = []
    for unit in ended:
        inside, position = _inside(unit), len(order)
        while position and order[position - 1] in inside:
            position -= 1
        order.insert(position, unit)
    return order
