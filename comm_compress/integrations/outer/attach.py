"""Local steps on real ranks: `attach` and the handle it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from comm_compress.core.compressor import Compressor
from comm_compress.core.segments import segments_of
from comm_compress.core.state import State
from comm_compress.drive import stock
from comm_compress.drive.stock_counts import StockCounts
from comm_compress.integrations.allreduce import AllReduceUnderWay, GradientAllReduce
from comm_compress.integrations.handle import BaseHandle, load
from comm_compress.integrations.outer.bits import bits
from comm_compress.integrations.outer.methods import How, Methods, gradient_methods
from comm_compress.integrations.outer.optimizers import OptimizerFactory, averaging
from comm_compress.integrations.outer.schedule import Schedule
from comm_compress.integrations.outer.synchroniser import GRADIENTS, OUTER, Arrived, Exchange, Means, Synchroniser
from comm_compress.integrations.replicas.fragments import (
    Fragment,
    Named,
    divide,
    held,
    local,
    set_apart,
    trainable,
)
from comm_compress.integrations.replicas.preconditions import group_of, require_equal, require_no_reduction
from comm_compress.registry import AnyMethod
from comm_compress.wrappers.replicas import apart


class Handle(Synchroniser, BaseHandle):
    """What `attach` returns: `step` after every inner optimizer step; a ledger (operation "outer"); states.

    ``state_dict()``, `rank_states` and their likes hold all that is needed to go on bit for bit, also between two
    synchronisations: the compressor's states, the outer parameters and optimizer, the number of steps, and means that
    are not applied yet. With ``overlap``, saving waits for what is under way, so all replicas save after the same step.
    The replicas' own parameters and inner optimizers are the trainer's to save, of every replica.
    """

    def __init__(
        self,
        model: Named,
        fragments: Sequence[Fragment],
        group: dist.ProcessGroup,
        methods: Methods,
        schedule: Schedule,
        optimizer: OptimizerFactory,
        seed: int,
        count_stock: bool = False,
        by_gradient: Fragment | None = None,
        of_gradients: Methods | None = None,
    ) -> None:
        BaseHandle.__init__(self)
        by_gradients = [] if by_gradient is None else [by_gradient]
        Synchroniser.__init__(self, [fragments], schedule, optimizer, by_gradients)
        self.method = methods.reduce
        self._group, self._rank, self._world = group, dist.get_rank(group), dist.get_world_size(group)
        self._sharded = (
            [m for m in model.modules() if isinstance(m, FSDPModule)] if isinstance(model, nn.Module) else []
        )
        self._reductions: dict[int, GradientAllReduce] = {}  # by the part's number
        self._counts: dict[int, StockCounts] = {}
        by_part = [*(methods for _ in fragments), *((of_gradients or methods) for _ in by_gradients)]
        for number, (part, how) in enumerate(zip(self._parts, by_part, strict=True)):
            if how.reduce is not None:
                self._reductions[number] = self._reduction(part, how, how.reduce, seed)
            elif count_stock:
                self._counts[number] = StockCounts(self.ledger, OUTER, part.name, self._rank, self._world)
            else:
                self.ledger.uncounted = (OUTER,)

    def _reduction(self, part: Fragment, how: Methods, reduce: Compressor, seed: int) -> GradientAllReduce:
        """What exchanges ``part``, whose parameters may be sharded."""
        holders = {name: held(p) for name, p in part.parameters.items()}
        state = State(part.name, self._rank, self._world, seed, _segments(part, self._world), lasting=False)
        back, there = None if how.gather is None else apart(how.gather, holders), apart(reduce, holders)
        how.check(there)
        return GradientAllReduce(state, there, back, self.ledger, self.workspaces, op=OUTER, rounds=how.rounds)

    @property
    def state_bytes(self) -> int:
        """The bytes that compressor states hold on this rank, and `kept_bytes`."""
        return super().state_bytes + self.kept_bytes

    @property
    def bits(self) -> float:
        """Bits a parameter and inner step so far, as `comm_compress.outer.bits` counts them, of this rank's shards."""
        parameters, steps = max(self.num_parameters, 1), max(self.inner_steps, 1)
        return bits(self.ledger.totals(OUTER).sent_bytes, parameters, steps, self._world)

    def rollback(self) -> None:
        """Do nothing: an inner step that is skipped has left no trace here; a synchronisation takes itself back."""

    def _states(self) -> dict[str, State]:
        return {f"{OUTER}/{self._parts[n].name}": reduction.state for n, reduction in self._reductions.items()}

    def _state_dict(self) -> dict[str, dict[str, Any]]:
        mine = self._saved(self._rank, self._world)  # first: it ends what is under way
        return {**super()._state_dict(), OUTER: mine}

    def load_state_dict(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Put back what ``state_dict()`` gave on the same replica of as many. ValueError, with nothing changed, when
        anything differs, or something is under way here."""
        if OUTER not in states:
            raise ValueError("no outer state to load: not saved by a handle of comm_compress.outer")
        if any(under_way.exchange is not None for under_way in self._under_way.values()):
            raise ValueError("a fragment is under way: load before the first step, or after synchronise()")
        self._check(states[OUTER], self._rank, self._world)
        load({key: state for key, state in states.items() if key != OUTER}, self._states())
        self._load([states[OUTER]])

    def _begin(self, number: int, by_replica: list[Means]) -> Exchange:
        (mine,) = by_replica
        if self._world == 1:
            return Arrived(mine)
        if number not in self._reductions:
            return Arrived(_mean(mine, self._group, self._counts.get(number)))
        return _Sent(mine, self._reductions[number].begin(mine, self._parts[number].name, self._group, self._world))

    def _void(self, number: int) -> None:
        if number in self._reductions:
            self._reductions[number].state.rollback()

    def _written(self) -> None:
        for module in self._sharded:  # what was gathered before is out of date
            module.reshard()


class _Sent:
    """What one replica has, which an all-reduce is about to replace by the mean over all."""

    def __init__(self, mine: Means, under_way: AllReduceUnderWay) -> None:
        self._mine, self._under_way = mine, under_way

    def advance(self) -> None:
        self._under_way.advance()

    def finish(self) -> Means:
        self._under_way.finish()
        return self._mine


def _segments(fragment: Fragment, world: int) -> Any:
    return segments_of([(name, tuple(t.shape) or (1,)) for name, t in fragment.local().items()], world)


def _mean(mine: Means, group: dist.ProcessGroup, counts: StockCounts | None) -> Means:
    """Return the mean over the group by torch's own all-reduce."""
    together = torch.cat([t.reshape(-1) for _, t in mine])
    run = partial(stock.all_reduce, together, group)
    total = (run() if counts is None else counts.all_reduce(together, run)) / group.size()
    parts = torch.split(total, [t.numel() for _, t in mine])
    return [(name, part.view_as(t)) for (name, t), part in zip(mine, parts, strict=True)]


def attach(
    model: Named,
    group: dist.ProcessGroup | DeviceMesh | None = None,
    method: AnyMethod | None = None,
    *,
    every: int,
    outer_optimizer: OptimizerFactory | None = None,
    all_gather: AnyMethod | None = None,
    exchange: How = "reduce_scatter",
    fragments: int | Sequence[Sequence[str]] = 1,
    overlap: int = 0,
    mixing: float = 0.0,
    by_gradient: Sequence[str] = (),
    gradient_every: int | None = None,
    gradient_method: AnyMethod | None = None,
    seed: int = 0,
    count_stock: bool = False,
) -> Handle:
    """Let the ranks of ``group`` train by themselves, and synchronise their parameters every ``every`` inner steps.

        handle = cc.outer.attach(model, mesh["replica"], "int4", every=30, outer_optimizer=cc.outer.nesterov())
        ...
        optimizer.step()            # the inner one: of the replica alone
        handle.step()               # after each, on every rank

    ``model``: a module, or named parameters; plain, or sharded by FSDP2 over another mesh dimension than ``group``,
    each of whose ranks then holds the same shard. What does not require a gradient, and buffers, are left alone.
    ``group``: the replicas, as a process group or a 1-D mesh; None: all ranks.
    ``method``: how a replica's pseudo-gradient (outer parameters minus own ones, float32) is sent; any method for
    gradients, with error feedback where it has it. None: torch's own all-reduce, which the ledger names as uncounted.
    ``all_gather`` carries the means back to everyone, exactly by default: a method for parameters, or one with error
    feedback ("binned feedback"), whose residual the rank keeps that sums the part.
    ``exchange``: "reduce_scatter", then all-gather of the means, as in `comm_compress.ddp`; "all_gather": every replica
    sends its whole message to all others, which add them up (`messages`); "auto": the one of them that sends fewer
    bytes, where means come back exactly, since both give the same numbers.
    ``outer_optimizer``: makes the optimizer that moves the outer parameters by the mean pseudo-gradient;
    default: `averaging`, after which replicas go on with their mean. `nesterov`: DiLoCo.
    ``fragments``, ``overlap``, ``mixing``: parts of the model that are sent in turn, steps between sending and
    applying, and what is kept of a replica's own parameters (`Schedule`, `fragments.divide`). On gloo the messages of
    an overlapped exchange travel while the replica computes; on CUDA the exchange is queued in the current stream.
    ``by_gradient``: names of parameters and modules that a replica does not move by itself: every ``gradient_every``
    steps (None: ``every``) its inner optimizer gets the mean of all replicas' gradients of them instead
    (`Handle.reduce_gradients`, to be called before each of its steps). For embeddings, which make most of what local
    steps of AdamW cost (docs/findings/local-steps.md). They are exchanged at once; ``fragments``, ``overlap`` and the
    outer optimizer are for all others. ``gradient_method``: how such gradients are sent, always by way of owners, and
    back by ``all_gather``; None: as pseudo-gradients are. Where every parameter is named, nobody takes a step alone:
    gradients are added up for ``gradient_every`` steps, as large batches are, and the replicas stay equal.
    ``seed``: of the methods' own random numbers.
    ``count_stock``: torch's own all-reduce is entered in the ledger as well, with bytes computed from its shape.
    Memory: a float32 copy of what this rank trains (for what goes ``by_gradient``: added gradients instead), and what
    the outer optimizer and the method remember; while a fragment is exchanged, about four times its float32 size.
    Raises ValueError when replicas do not begin equal, when something else reduces gradients among them at every step,
    and for methods and schedules that cannot do it.
    """
    replicas = group_of(group)
    if not isinstance(model, nn.Module):
        model = list(model)
    parameters = trainable(model)
    moving, others = set_apart(parameters, by_gradient)
    parts = divide(moving, fragments)
    schedule = Schedule(every, len(parts), overlap, mixing, gradient_every)
    elements = sum(local(p).numel() for p in parameters.values())
    methods = Methods(method, all_gather, exchange, dist.get_world_size(replicas), elements)
    of_gradients = gradient_methods(methods, gradient_method, moving, others, dist.get_world_size(replicas))
    require_no_reduction(model, parameters, replicas)
    require_equal(parameters, replicas)
    gradients = Fragment(GRADIENTS, others) if others else None
    optimizer = outer_optimizer or averaging()
    return Handle(model, parts, replicas, methods, schedule, optimizer, seed, count_stock, gradients, of_gradients)
