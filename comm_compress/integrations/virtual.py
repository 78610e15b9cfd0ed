"""Training with W virtual ranks in one process: FSDP2's units, rows and means without FSDP2 or a network."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from comm_compress.core.ledger import Collective, Ledger, Op
from comm_compress.core.segments import Segment, flatten, segments_of, unflatten
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.drive.comparison import Comparisons
from comm_compress.integrations import allreduce
from comm_compress.integrations.handle import load, save
from comm_compress.registry import AnyMethod, chosen


class _Unit(NamedTuple):
    """One unit's own parameters in FSDP2's order, and each rank's states."""

    name: str
    parameters: dict[str, nn.Parameter]
    gradients: list[State]
    gathers: list[State]

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.parameters.items() if p.requires_grad}


class VirtualRanks:
    """A plain module that trains as if ``world`` ranks held it under FSDP2 with `comm_compress.attach`.

        ranks = VirtualRanks(model, 16, ["blocks.0", "blocks.1"], reduce_scatter="topk")
        for step in range(steps):
            with ranks.gathered():                        # the parameters as an all-gather brings them
                for r in range(16):
                    loss_of(model, batches[step][r]).backward()
                    ranks.collect(r)                      # these gradients are rank r's
            ranks.reduce()                                # p.grad: the mean that FSDP2 would leave there
            optimizer.step(); optimizer.zero_grad()

    ``units``: names of the modules that `fully_shard` would be called on; the model itself is always one, named
    "root", and a parameter belongs to the innermost unit around it. ``param_dtype``: what FSDP2's MixedPrecisionPolicy
    of that name computes in and gathers, torch.bfloat16, while gradients are reduced in float32 (its ``reduce_dtype``);
    None: float32, as the parameters are. Random numbers, ledgers and states are those of
    the real ranks; so are the gradients: bit for bit at two ranks, to the order of sums above. Only what real ranks
    prefetch on a CPU and then do not use is missing: `attach` with ``prefetch=0`` gathers what is used.
    Memory: one gradient for every rank (and what the method remembers), one unit's messages and rows of all ranks while
    it is reduced, and its decoded parameters twice while it is gathered. Times in the ledgers are zero.
    Raises ValueError for unknown units, parameters shared between units, and what `attach` refuses.
    """

    def __init__(
        self,
        model: nn.Module,
        world: int,
        units: Sequence[str],
        *,
        reduce_scatter: AnyMethod | None = None,
        all_gather: AnyMethod | None = None,
        reshard_after_forward: bool = True,
        seed: int = 0,
        param_dtype: torch.dtype | None = None,
    ) -> None:
        reduce_scatter, all_gather = chosen("reduce_scatter", reduce_scatter), chosen("all_gather", all_gather)
        if world < 1:
            raise ValueError(f"world = {world}: must be 1 or more")
        for name, compressor in (("reduce_scatter", reduce_scatter), ("all_gather", all_gather)):
            if compressor is not None:
                allreduce.check_ranks(compressor, world)
                compressor.check_names([name for name, _ in model.named_parameters()])
                if name == "reduce_scatter" and not compressor.traits.for_gradients:
                    raise ValueError(f"reduce_scatter: {compressor.name} is for parameters (all_gather) only")
        allreduce.check_gather("all_gather", all_gather)
        self.world, self.reduce_scatter, self.all_gather = world, reduce_scatter, all_gather
        self.reshard_after_forward = reshard_after_forward
        self.param_dtype = None if param_dtype == torch.float32 else param_dtype
        stock: list[Op] = ["reduce_scatter"] if reduce_scatter is None else []
        stock += ["all_gather"] if all_gather is None else []
        self.ledgers = [Ledger(tuple(stock)) for _ in range(world)]
        """Each rank's ledger."""
        self._model = model
        self._units = _units(model, world, units, seed)
        self._collected: list[dict[nn.Parameter, Tensor]] = [{} for _ in range(world)]
        self._reduced: dict[nn.Parameter, Tensor] = {}
        self._comparisons: Comparisons | None = None
        self._check_dtypes()

    def _check_dtypes(self) -> None:
        for unit in self._units:
            if len(dtypes := {p.dtype for p in unit.parameters.values()}) > 1:
                raise ValueError(f"unit {unit.name!r} has parameters of several dtypes: {sorted(map(str, dtypes))}")
            if torch.float16 in dtypes:
                raise ValueError(
                    f"unit {unit.name!r} is float16, whose reduction FSDP2 scales in two parts: use bfloat16"
                )
            if self.param_dtype is not None and (self.param_dtype, dtypes) != (torch.bfloat16, {torch.float32}):
                held = ", ".join(sorted(map(str, dtypes)))
                raise ValueError(
                    f"param_dtype = {self.param_dtype}, unit {unit.name!r} is {held}: virtual ranks compute in "
                    "torch.bfloat16 what is kept in torch.float32"
                )

    @property
    def ledger(self) -> Ledger:
        """What rank 0 sent; every other rank has a ledger in ``ledgers``."""
        return self.ledgers[0]

    @property
    def state_bytes(self) -> int:
        """The bytes that residuals and other states hold for one rank, the mean over ranks."""
        states = (state for unit in self._units for state in (*unit.gradients, *unit.gathers))
        return round(sum(state.num_bytes for state in states) / self.world)

    @property
    def unit_elements(self) -> dict[str, int]:
        """How many elements all ranks' shards of each unit have together, padding included."""
        return {u.name: self.world * _segments(u.parameters, self.world)[-1].stop for u in self._units}

    @property
    def trainable_elements(self) -> dict[str, int]:
        """The same of the parameters that are trained, which are what is reduced; a unit that has none is left out."""
        trainable = {unit.name: unit.trainable for unit in self._units if unit.trainable}
        return {name: self.world * _segments(held, self.world)[-1].stop for name, held in trainable.items()}

    def exact(self) -> AbstractContextManager[None]:
        """For evaluation, as `Handle.exact`: the parameters as they are, in ``param_dtype``; nothing is counted."""
        return self._in_place(self._exact_values)

    def compare(self) -> Comparisons:
        """Compare reduced gradients with the exact ones, as `Handle.compare`, until the result's `close`.

        What it finds are all ranks' parts together.
        """
        self._comparisons = Comparisons(self._compare_no_more)
        return self._comparisons

    def _compare_no_more(self) -> None:
        self._comparisons = None

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Inside, a unit's parameters are what the ranks see after the all-gather; the exact ones come back on exit.

        Once a micro-batch, around all ranks' forward and backward passes. As under FSDP2 a unit is gathered when its
        module's forward begins. It counts FSDP2's gathers of one forward and backward: two a unit (one without
        ``reshard_after_forward``, and for the root).
        """
        is_stock = self.all_gather is None or self.world == 1
        with self._in_place(self._exact_values if is_stock else self._gather):
            yield

    @contextmanager
    def _in_place(self, values_of: Callable[[_Unit], list[Tensor]]) -> Iterator[None]:
        """Inside, a unit's parameters are ``values_of(unit)`` from its first forward on, and floats that go into a unit
        are cast to ``param_dtype``, as FSDP2 does."""
        if values_of == self._exact_values and self.param_dtype is None:
            yield
            return
        exact = [(p, p.data) for unit in self._units for p in unit.parameters.values()]
        waiting = {unit.name for unit in self._units}
        modules = {name or "root": module for name, module in self._model.named_modules()}

        def before_forward(unit: _Unit, inputs: Any) -> Any:
            if unit.name in waiting:
                waiting.remove(unit.name)
                for p, value in zip(unit.parameters.values(), values_of(unit), strict=True):
                    p.data = value
            return inputs if self.param_dtype is None else tree_map_only(Tensor, self._cast, inputs)

        hooks = [
            modules[unit.name].register_forward_pre_hook(
                lambda _, args, kwargs, unit=unit: before_forward(unit, (args, kwargs)), prepend=True, with_kwargs=True
            )
            for unit in self._units
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for p, data in exact:
                p.data = data

    def _cast(self, x: Tensor) -> Tensor:
        """``x`` in the dtype that is computed in, if it is a float."""
        return x if self.param_dtype is None or not x.is_floating_point() else x.to(self.param_dtype)

    def _exact_values(self, unit: _Unit) -> list[Tensor]:
        """The parameters of a unit as FSDP2 gathers them without a method."""
        return [self._cast(p.detach()) for p in unit.parameters.values()]

    def _gather(self, unit: _Unit) -> list[Tensor]:
        """The parameters of a unit as the method brings them to all ranks."""
        assert self.all_gather is not None
        masters = flatten([p.detach() for p in unit.parameters.values()], self.world)
        shards = self._cast(masters)
        times = 2 if self.reshard_after_forward and unit.name != "root" else 1
        for _ in range(times):
            for state, master in zip(unit.gathers, masters, strict=True):
                state.begin()
                if self.param_dtype is not None:
                    state.master = partial(torch.clone, master)
            rounds = [self.all_gather.all_gather(row, state) for row, state in zip(shards, unit.gathers, strict=True)]
            outcome = simulate.lockstep([rounds[0], *map(_result_dropped, rounds[1:])])
            for state in unit.gathers:
                state.master = None
            self._enter("all_gather", unit.name, outcome, shards, None)
        rows = outcome.results[0].to(shards.dtype)
        return [value.contiguous() for value in unflatten(rows, unit.gathers[0].segments)]

    def collect(self, rank: int) -> None:
        """Take the gradients that ``backward`` left: they are ``rank``'s. Taken twice before `reduce`, they add up."""
        mine = self._collected[rank]
        for unit in self._units:
            for name, p in unit.trainable.items():
                if p.grad is None:
                    continue
                if p.grad is self._reduced.get(p):
                    raise ValueError(
                        f"{name}: .grad still holds the last mean; call zero_grad() before the next backward"
                    )
                if p in mine:
                    mine[p] += p.grad
                else:
                    mine[p] = p.grad if self.param_dtype is None else p.grad.float()
                p.grad = None

    def reduce(self) -> None:
        """Reduce what was collected: ``p.grad`` becomes the mean over ranks, as FSDP2 leaves it.

        A parameter without a gradient on some ranks counts as zeros there; without one on all ranks it is left alone,
        unless the method remembers something of it. Where a rank's unit is not finite, every rank's part of it gets a
        NaN, as over a network: look at the gradient norm, and call `rollback` when the step is void.
        """
        for unit in self._units:
            self._reduce(unit)
        self._collected = [{} for _ in range(self.world)]

    def _reduce(self, unit: _Unit) -> None:
        trainable = self._reduced_now(unit)
        if not trainable:
            return
        inputs = [  # taken out one by one: of a unit and rank there is either the gradients or the rows
            flatten([_taken(mine, p) for p in trainable.values()], self.world) for mine in self._collected
        ]
        segments = _segments(trainable, self.world)
        for p, value in zip(trainable.values(), unflatten(self._mean(unit, inputs, segments), segments), strict=True):
            p.grad = self._reduced[p] = value.clone()

    def _reduced_now(self, unit: _Unit) -> dict[str, nn.Parameter]:
        """Return parameters with a gradient on some rank and, if there are any, those that methods remember."""
        trainable = unit.trainable
        used = {n for n, p in trainable.items() if any(p in mine for mine in self._collected)}
        kept = {s.name for state in unit.gradients[:1] if state.remembers for s in state.segments}
        return {n: p for n, p in trainable.items() if n in used | kept} if used else {}

    def _mean(self, unit: _Unit, inputs: list[Tensor], segments: tuple[Segment, ...]) -> Tensor:
        """Return the mean over ranks, ``[W, n]``, of which rank r holds row r."""
        if self.world == 1:
            return inputs[0]
        if self.reduce_scatter is None:
            return _sum(inputs).div_(self.world).to(inputs[0].dtype)
        for rows, state in zip(inputs, unit.gradients, strict=True):
            state.segments = segments
            state.begin(self.reduce_scatter.mark(rows))
        pairs = zip(inputs, unit.gradients, strict=True)
        outcome = simulate.lockstep([self.reduce_scatter.reduce_scatter(rows, state) for rows, state in pairs])
        self._enter("reduce_scatter", unit.name, outcome, inputs[0], unit.gradients)
        if self._comparisons is not None:
            exact = _sum(inputs)
            for rank, (rows, reduced, state) in enumerate(zip(inputs, outcome.results, unit.gradients, strict=True)):
                belongs = partial(torch.select, exact, 0, rank)
                self._comparisons.add(rows, reduced.total, belongs, self.reduce_scatter, reduced.sent, state)
        return torch.stack([reduced.total for reduced in outcome.results]).to(inputs[0].dtype).div_(self.world)

    def _enter(self, op: Op, unit: str, outcome: simulate.Outcome, rows: Tensor, states: list[State] | None) -> None:
        for rank, ledger in enumerate(self.ledgers):
            collective = Collective(torch.device("cpu"), outcome.sent[rank], outcome.rounds)
            finite = states[rank].finite if states is not None else None
            ledger.add(op, unit, collective, rows[1:].numel(), rows.itemsize, finite)

    def rollback(self) -> None:
        """Forget what the last step did to the gradients' states: it was void."""
        for unit in self._units:
            for state in unit.gradients:
                state.rollback()

    def state_dicts(self) -> list[dict[str, Any]]:
        """Return what each rank's `Handle.state_dict` would be."""
        return [{key: save(state) for key, state in of_rank.items()} for of_rank in self._states_by_rank()]

    def load_state_dicts(self, states: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
        """Put back what `state_dicts` gave on as many ranks. Raises ValueError when anything differs."""
        if len(states) != self.world:
            raise ValueError(f"compressor states of {len(states)} ranks do not fit {self.world} virtual ranks")
        for saved, of_rank in zip(states, self._states_by_rank(), strict=True):
            load(saved, of_rank)

    def _states_by_rank(self) -> list[dict[str, State]]:
        """Return each rank's states by "operation/unit", as its own handle would have them."""
        by_rank: list[dict[str, State]] = [{} for _ in range(self.world)]
        for unit in self._units:
            for op, states, method in (
                ("reduce_scatter", unit.gradients, self.reduce_scatter),
                ("all_gather", unit.gathers, self.all_gather),
            ):
                if method is not None:
                    for mine, state in zip(by_rank, states, strict=True):
                        mine[f"{op}/{unit.name}"] = state
        return by_rank


def _result_dropped(rounds: Generator[Any, Any, Any]) -> Generator[Any, Any, None]:
    """Take these rounds and drop their result at once: of equal results one is enough."""
    yield from rounds


def _taken(mine: dict[nn.Parameter, Tensor], p: nn.Parameter) -> Tensor:
    gradient = mine.pop(p, None)
    return torch.zeros_like(p) if gradient is None else gradient


def _sum(inputs: list[Tensor]) -> Tensor:
    """Sum up in float32, rank after rank: a stack of them would take all their memory again."""
    total = inputs[0].to(torch.float32, copy=True)
    for rows in inputs[1:]:
        total += rows
    return total


def _segments(parameters: dict[str, nn.Parameter], world: int) -> tuple[Segment, ...]:
    return segments_of([(name, tuple(p.shape)) for name, p in parameters.items()], world)


def _units(model: nn.Module, world: int, names: Sequence[str], seed: int) -> list[_Unit]:
    """Return units in `named_modules` order, the root first, as `attach` finds FSDP2's units."""
    modules = dict(model.named_modules())
    if unknown := [name for name in names if name not in modules or not name]:
        raise ValueError(f"units = {unknown}: not modules of the model; it has {', '.join(n for n in modules if n)}")
    roots = {id(modules[name]) for name in names}
    full_names = {id(p): name for name, p in model.named_parameters()}
    owner: dict[int, str] = {}
    in_order = []
    for name in ["", *(n for n in modules if n and n in set(names))]:
        parameters: dict[str, nn.Parameter] = {}
        for module in _managed(modules[name], roots - {id(modules[name])}, set()):
            for p in module.parameters(recurse=False):
                full_name = full_names[id(p)]
                if p.dim() == 0:
                    raise ValueError(f"{full_name}: FSDP2 shards no scalar parameters; make it one of shape (1,)")
                if owner.setdefault(id(p), name) != name:
                    raise ValueError(
                        f"{full_name} is shared between units {owner[id(p)] or 'root'!r} and {name or 'root'!r}: "
                        "under FSDP2 it would no longer be shared; put both uses into one unit"
                    )
                parameters[full_name] = p
        if parameters:
            unit = name or "root"
            trainable = {n: p for n, p in parameters.items() if p.requires_grad}
            states = [
                [State(unit, rank, world, seed, _segments(held, world), lasting) for rank in range(world)]
                for held, lasting in ((trainable, False), (parameters, True))
            ]
            in_order.append(_Unit(unit, parameters, *states))
    return in_order


def _managed(module: nn.Module, nested: set[int], seen: set[int]) -> Iterator[nn.Module]:
    """Yield modules in FSDP2's order: a module after its children, nested units left out."""
    seen.add(id(module))
    for child in module.children():
        if id(child) not in seen and id(child) not in nested:
            yield from _managed(child, nested, seen)
    yield module
