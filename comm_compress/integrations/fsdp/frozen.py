"""Frozen parameters, kept by every rank after they were gathered once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from comm_compress.core.ledger import Collective, Ledger
from comm_compress.core.rounds import AllGatherRounds, AllReduce
from comm_compress.core.segments import Ranges, put_columns, take_columns
from comm_compress.core.state import State
from comm_compress.drive import transport
from comm_compress.integrations.fsdp import _compat
from comm_compress.methods.delta.changes import same_bits
from comm_compress.methods.identity import UNCOMPRESSED


class Column(NamedTuple):
    """One parameter in the rows of an all-gather, and how many columns it has there."""

    name: str
    width: int
    frozen: bool


def ranges(columns: Sequence[Column], chosen: Callable[[Column], bool]) -> Ranges:
    """Return the columns in which the chosen parameters lie."""
    chosen_ranges, start = [], 0
    for column in columns:
        if chosen(column):
            chosen_ranges.append((start, start + column.width))
        start += column.width
    return chosen_ranges


class FrozenReplicas:
    """What the ranks of one unit need not send again: its frozen parameters, whole, in the dtype they are gathered in.

    They are sent exactly, once, and again when they were forgotten.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """The bytes of all parameters that are kept."""
        return sum(rows.nbytes for rows in self._kept.values())

    def forget(self, names: Sequence[str] | None = None) -> None:
        """Drop the parameters of these names, or all: they are sent once more when they are next needed."""
        for name in list(self._kept) if names is None else names:
            del self._kept[name]

    def changed(self, shards: Mapping[str, Tensor], rank: int) -> dict[str, bool]:
        """Return for every parameter that is kept whether this rank's ``shards`` are no longer what it sent."""
        return {
            name: not same_bits(shards[name].to(rows.device, rows.dtype), rows[rank])
            for name, rows in self._kept.items()
        }

    def missing(self, columns: Sequence[Column], dtype: torch.dtype) -> set[str]:
        """The frozen parameters that must be sent. What is kept of parameters that are trainable now is dropped."""
        frozen = {column.name for column in columns if column.frozen}
        self._kept = {name: rows for name, rows in self._kept.items() if name in frozen and rows.dtype == dtype}
        return frozen - self._kept.keys()

    def all_gather(
        self, row: Tensor, columns: Sequence[Column], rest: Callable[[Ranges], AllGatherRounds], state: State
    ) -> AllGatherRounds:
        """The rounds of an all-gather of ``row`` ``[n]`` with these ``columns``; returns all ranks' rows, ``[R, n]``.

        ``rest``: the rounds that gather the other columns, given their ranges. ``state`` says how many ranks there are:
        when these are fewer than frozen parameters were sent by, ``columns`` are as many times wider.
        """
        if missing := self.missing(columns, row.dtype):
            yield from self._fetch(row, [c for c in columns if c.name in missing], columns, state)
        gathered = row.new_empty(state.world, row.numel())
        if trainable := ranges(columns, lambda column: not column.frozen):
            put_columns((yield from rest(trainable)), trainable, gathered)
        for column, (start, stop) in zip(columns, ranges(columns, lambda _: True), strict=True):
            if column.frozen:
                gathered[:, start:stop] = self._kept[column.name].reshape(state.world, column.width)
        return gathered

    def _fetch(self, row: Tensor, chosen: Sequence[Column], columns: Sequence[Column], state: State) -> AllGatherRounds:
        mine = take_columns(row, ranges(columns, lambda column: column in chosen))
        fetching = State(state.unit, state.rank, state.world)
        fetching.begin(output=mine.new_empty(state.world, mine.numel()))
        everyone = yield from UNCOMPRESSED.all_gather(mine, fetching)
        for column, (start, stop) in zip(chosen, ranges(chosen, lambda _: True), strict=True):
            self._kept[column.name] = everyone[:, start:stop]
        return everyone


class Watched(NamedTuple):
    """A unit's replicas, the ranks that hold its shards, and its parameters as FSDP2 records them."""

    replicas: FrozenReplicas
    group: dist.ProcessGroup
    parameters: list[tuple[str, Any]]


class FrozenWatch:
    """Before each forward of an outermost FSDP2 module, ranks agree which frozen parameters are to be sent again.

    Each compares the shards that it holds with what it sent, bit for bit: ``load_state_dict``, DCP, ``.data`` and
    changes of one rank's rows all show. One message says so to the others, a byte for every frozen parameter, which the
    ledger counts as an all-gather of the unit "frozen".
    """

    counted = True

    def __init__(self, model: nn.Module, units: Sequence[Watched], ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_group: dict[dist.ProcessGroup, list[Watched]] = {}
        for unit in units:
            if unit.group.size() > 1:
                self._by_group.setdefault(unit.group, []).append(unit)
        sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
        inner = {inside for module in sharded for inside in module.modules() if inside is not module}
        self._hooks = [
            module.register_forward_pre_hook(self._before_forward, prepend=True)
            for module in sharded
            if module not in inner
        ]

    def undo(self) -> None:
        """Remove the hooks that look at parameters before each forward."""
        for hook in self._hooks:
            hook.remove()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_forward(self, *_: Any) -> None:
        if not _compat.in_backward():  # activation checkpointing repeats a forward there
            for group, units in self._by_group.items():
                self._agree(group, units)

    def _agree(self, group: dist.ProcessGroup, units: Sequence[Watched]) -> None:
        changed = [
            (unit.replicas, name, flag)
            for unit in units
            for name, flag in unit.replicas.changed(_compat.shards(unit.parameters), group.rank()).items()
        ]
        if not changed:
            return
        device = units[0].parameters[0][1].device  # the mesh's, also when shards are offloaded to the CPU
        collective = Collective(device)
        flags = torch.tensor([flag for _, _, flag in changed], dtype=torch.uint8, device=device)
        anywhere = transport.run(_maximum(flags), group, collective)
        if self.counted:
            self._ledger.add("all_gather", "frozen", collective, 0, 1, None)
        for (replicas, name, _), flag in zip(changed, anywhere.tolist(), strict=True):
            if flag:
                replicas.forget([name])


def _maximum(flags: Tensor) -> AllGatherRounds:
    anywhere: Tensor = yield AllReduce(flags, "max")
    return anywhere
