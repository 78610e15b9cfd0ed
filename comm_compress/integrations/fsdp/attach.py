"""Compressed collectives inside FSDP2: `attach` and the handle it returns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from comm_compress.core.compressor import Compressor
from comm_compress.core.ledger import Op
from comm_compress.core.state import State
from comm_compress.drive.comparison import Comparisons
from comm_compress.integrations import allreduce
from comm_compress.integrations.allreduce import GradientAllReduce
from comm_compress.integrations.fsdp import _compat
from comm_compress.integrations.fsdp.backward import Backward
from comm_compress.integrations.fsdp.frozen import FrozenReplicas, FrozenWatch, Watched
from comm_compress.integrations.fsdp.hooks import (
    Comm,
    CompressedAllGather,
    CompressedAllReduce,
    CompressedReduceScatter,
    Unit,
    require_segments,
)
from comm_compress.integrations.fsdp.prefetch import Prefetch
from comm_compress.integrations.handle import BaseHandle
from comm_compress.integrations.optimizer_steps import OptimizerSteps
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.registry import AnyMethod, chosen

CARRIED = (torch.float32, torch.bfloat16, torch.float16)


class Handle(BaseHandle):
    """What `attach` installed: its ledger, its state, and the way out."""

    def __init__(self, reduce_scatter: Compressor | None, all_gather: Compressor | None) -> None:
        super().__init__()
        self.reduce_scatter, self.all_gather = reduce_scatter, all_gather
        self._gathers: list[tuple[Any, CompressedAllGather]] = []
        self._reductions: list[CompressedReduceScatter] = []
        self._by_key: dict[str, State] = {}
        self._undo: list[tuple[Any, str, Any]] = []
        self._alone: dist.ProcessGroup | None = None
        self._prefetch: Prefetch | None = None
        self._frozen: list[Watched] = []
        self._frozen_watch: FrozenWatch | None = None
        self._inexact_hop: str | None = None  # what carries gradients between replicas, if it rounds

    def _states(self) -> dict[str, State]:
        return self._by_key

    @property
    def frozen_bytes(self) -> int:
        """Memory that ``keep_frozen`` holds on this rank."""
        return sum(unit.replicas.num_bytes for unit in self._frozen)

    @property
    def state_bytes(self) -> int:
        """Memory that residuals, other states and frozen parameters hold on this rank."""
        return super().state_bytes + self.frozen_bytes

    def forget_frozen(self) -> None:
        """Send frozen parameters once more when they are next used; to be called on all ranks.

        Only needed when they have changed and are used before the next forward of an outermost FSDP2 module, which
        looks (`FrozenWatch`): after ``unshard()``, or by another method than forward.
        """
        for unit in self._frozen:
            unit.replicas.forget()

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Inside, parameters are gathered uncompressed and nothing is entered in the ledger: for evaluation.

        Units are resharded on the way in and out: none goes on with what it gathered on the other side.
        """
        self._set_exact(True)
        try:
            yield
        finally:
            self._set_exact(False)

    def _set_exact(self, exact: bool) -> None:
        for group, comm in self._gathers:
            group.reshard()
            comm.exact = exact
        if self._frozen_watch is not None:
            self._frozen_watch.counted = not exact

    def compare(self) -> Comparisons:
        """Compare each unit's reduced gradient with the exact one, from now until the result's `close`.

            with handle.compare() as comparisons:
                loss.backward()
            comparisons.total().relative_error        # this rank's part; add the ranks' totals

        Every rank must do so for the same steps: torch's own float32 reduce-scatter runs beside each compressed one.
        No gradient, state or count changes. On HSDP it is about the reduce-scatter among a shard's ranks. ValueError
        where that would not be the whole story: when no reduce-scatter is compressed, and when what replicas exchange
        afterwards (``all_reduce``) is not exact.
        """
        if not self._reductions:
            raise ValueError("compare: no reduce-scatter passes this handle; attach(..., reduce_scatter=...) has one")
        if self._inexact_hop is not None:
            raise ValueError(
                f"compare: between replicas gradients also go by {self._inexact_hop} (all_reduce), whose error cannot "
                'be compared; all_reduce="identity" without all_reduce_gather leaves that of the reduce-scatter'
            )
        self._set_comparisons(found := Comparisons(lambda: self._set_comparisons(None)))
        return found

    def _set_comparisons(self, comparisons: Comparisons | None) -> None:
        for reduction in self._reductions:
            reduction.comparisons = comparisons

    def detach(self) -> None:
        """Give FSDP2 its own collectives back."""
        for target, attribute, value in reversed(self._undo):
            setattr(target, attribute, value)
        if self._alone is not None:
            dist.destroy_process_group(self._alone)
            self._alone = None
        if self._prefetch is not None:
            self._prefetch.undo()
            self._prefetch = None
        if self.steps is not None:
            self.steps.close()
        self._undo.clear()
        self._gathers.clear()
        self._reductions.clear()
        self._by_key.clear()
        self._frozen.clear()
        if self._frozen_watch is not None:
            self._frozen_watch.undo()
            self._frozen_watch = None

    def _set(self, target: Any, attribute: str, value: Any) -> None:
        self._undo.append((target, attribute, getattr(target, attribute)))
        setattr(target, attribute, value)

    def _this_rank_alone(self) -> dist.ProcessGroup:
        if self._alone is None:
            self._alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        assert self._alone is not None
        return self._alone


def attach(
    model: nn.Module,
    *,
    reduce_scatter: AnyMethod | None = None,
    all_gather: AnyMethod | None = None,
    all_reduce: AnyMethod | None = None,
    all_reduce_gather: AnyMethod | None = None,
    keep_frozen: bool = False,
    prefetch: int = 1,
    seed: int = 0,
) -> Handle:
    """Compress the collectives of every FSDP2 unit in ``model`` (call it after `fully_shard`).

    A method is given as ``"int8"``, ``"topk ratio=0.01"``, ``{"method": "topk", "ratio": 0.01}`` or what `make` built.
    ``reduce_scatter`` carries gradients, ``all_gather`` parameters; None leaves that direction to FSDP2
    untouched, and the ledger names it as uncounted. On a 2-D mesh (HSDP) these run within a shard group, and
    ``all_reduce`` carries the reduced gradients between replicas: its first half (to the owner of each part) by this
    method, its second half (the sum, back to everyone) by ``all_reduce_gather``, exactly by default.
    ``keep_frozen``: send each frozen parameter once, exactly, and keep it on every rank (`FrozenReplicas`), until any
    rank sees before a forward that its part has changed (`FrozenWatch`: a byte a parameter tells the others); only
    trainable ones then travel, by ``all_gather`` or, with None, as they are. Numbers of stock and ``identity`` do not
    change. It takes as much memory on every rank as all frozen parameters have, unsharded, in the dtype they are
    gathered in (`Handle.frozen_bytes`): memory that FSDP2 was there to save, so it is not done unless asked for. When
    most parameters are frozen, a warning says what it would cost.
    ``prefetch``: on a CPU, gather the parameters of so many next units while one computes, compressed or not
    (`Prefetch`); the ledger's wire time is then what a unit still had to wait for. On CUDA FSDP2 does so by itself.
    ``seed``: of the methods' own random numbers; no global generator is touched. FSDP2 is set
    to undivided sums, which it divides itself after the float32 sum.
    Raises ValueError when nothing is sharded, when a method's ``layers`` name no parameter, when a method cannot do
    what is asked of it, or when a unit is of a kind whose traffic would not all be compressed or counted.
    """
    reduce_scatter, all_gather = chosen("reduce_scatter", reduce_scatter), chosen("all_gather", all_gather)
    all_reduce, all_reduce_gather = chosen("all_reduce", all_reduce), chosen("all_reduce_gather", all_reduce_gather)
    if prefetch < 0:
        raise ValueError(f"prefetch = {prefetch!r}: must be 0 (none) or positive")
    units = _units(model)
    if keep_frozen:
        all_gather = all_gather or UNCOMPRESSED
    elif dist.get_rank() == 0 and (advice := _frozen_advice(units)):
        warnings.warn(advice, stacklevel=2)
    for method in (reduce_scatter, all_gather, all_reduce, all_reduce_gather):
        if method is not None:
            method.check_names([name for unit in units for name, _ in unit.parameters])
    for unit in units:
        _check(unit, reduce_scatter, all_gather, all_reduce, all_reduce_gather)
    handle = Handle(reduce_scatter, all_gather)
    handle.ledger.uncounted = _stock(units, reduce_scatter, all_gather, all_reduce)
    inexact = [hop.name for hop in (all_reduce, all_reduce_gather) if hop is not None and not hop.traits.lossless]
    handle._inexact_hop = " and ".join(inexact) or None
    if prefetch:
        handle._prefetch = Prefetch(model, prefetch)
    for unit in units:
        group = unit.group
        if reduce_scatter is not None or all_reduce is not None:
            handle.steps = handle.steps or OptimizerSteps(model)
            backward = Backward(group, unit.parameters, handle.steps)
            handle._set(group, "post_backward", backward)
            unit = unit._replace(backward=backward)
        if reduce_scatter is not None:
            state = handle._by_key[f"reduce_scatter/{unit.name}"] = unit.state("reduce_scatter", seed)
            method = unit.apart(reduce_scatter)
            scatter = CompressedReduceScatter(state, method, handle.ledger, handle.workspaces, unit, handle._scale)
            handle._reductions.append(scatter)
            handle._set(group, "_reduce_scatter_comm", scatter)
        if all_reduce is not None:
            state = handle._by_key[f"all_reduce/{unit.name}"] = unit.state("all_reduce", seed)
            back = unit.apart(all_reduce_gather) if all_reduce_gather is not None else None
            reduction = GradientAllReduce(
                state, unit.apart(all_reduce), back, handle.ledger, handle.workspaces, handle._scale
            )
            handle._set(group, "_all_reduce_hook", CompressedAllReduce(unit, reduction))
            handle._set(unit.meshes.info, "replicate_process_group", handle._this_rank_alone())
        if all_gather is not None:
            state = handle._by_key[f"all_gather/{unit.name}"] = unit.state("all_gather", seed)
            state.segments = state.parameters = unit.gathered_segments(keep_frozen)
            method = unit.apart(all_gather)
            gather = CompressedAllGather(state, method, handle.ledger, handle.workspaces, unit)
            if keep_frozen:
                gather.frozen = FrozenReplicas()
                handle._frozen.append(Watched(gather.frozen, unit.meshes.shard, unit.parameters))
            if _compat.trainable(unit.parameters) or not keep_frozen:
                require_segments(method, state)
            handle._gathers.append((group, gather))
            handle._set(group, "_all_gather_comm", gather)
        if reduce_scatter is not None or all_reduce is not None:
            if unit.meshes.shard.size() > 1:  # FSDP2 divides twice by a divide factor when one rank is to sum
                handle._set(group, "force_sum_reduction_for_comms", True)
            keys = (f"reduce_scatter/{unit.name}", f"all_reduce/{unit.name}")
            backward.states = [handle._by_key[key] for key in keys if key in handle._by_key]
    if keep_frozen:
        handle._frozen_watch = FrozenWatch(model, handle._frozen, handle.ledger)
    return handle


def _frozen_advice(units: list[Unit]) -> str:
    """What to do about parameters that are gathered at every use though they never change; empty when they are few."""
    elements = still = size = 0
    for unit in units:
        for _, p in unit.parameters if unit.meshes.shard.size() > 1 else ():
            elements += p._orig_size.numel()
            if not p.sharded_param.requires_grad:
                still += p._orig_size.numel()
                size += p._orig_size.numel() * _compat.gathered_dtype(unit.group, p).itemsize
    if 2 * still <= elements:
        return ""
    return (
        f"comm_compress: {100 * still / elements:.0f} % of the sharded parameters are frozen, and FSDP2 gathers them "
        "at every use; attach(..., keep_frozen=True) sends them once, for which every rank keeps "
        f"{size / 1e6:.1f} MB"
    )


def _stock(
    units: list[Unit], reduce_scatter: Compressor | None, all_gather: Compressor | None, all_reduce: Compressor | None
) -> tuple[Op, ...]:
    """The operations that are left to FSDP2, where nobody counts them."""
    methods: list[tuple[Op, Compressor | None]] = [("reduce_scatter", reduce_scatter), ("all_gather", all_gather)]
    if any(unit.meshes.replicas is not None for unit in units):
        methods.append(("all_reduce", all_reduce))
    return tuple(op for op, method in methods if method is None)


def _units(model: nn.Module) -> list[Unit]:
    """Every parameter group of every FSDP2 module that has parameters of its own.

    Modules that `fully_shard` was given together, as a list, are one unit: "norm+head".
    """
    found, names = [], dict[tuple[int, ...], list[str]]()
    sharded = [(name or "root", module) for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    for name, module in sharded:
        names.setdefault(tuple(map(id, _compat.param_groups(module))), []).append(name)
    for name, module in sharded:
        groups = _compat.param_groups(module)
        together = names[tuple(map(id, groups))]
        for i, group in enumerate(groups if name == together[0] else []):
            full_name = "+".join(together) + (f"[{i}]" if len(groups) > 1 else "")
            meshes = _compat.meshes(group)
            if meshes is None:
                raise ValueError(f"unit {full_name!r} is replicated, not sharded: use comm_compress.integrations.ddp")
            found.append(Unit(full_name, group, _compat.parameters(model, group), meshes))
    if not found:
        raise ValueError("attach: the model has no FSDP2 unit with parameters; call fully_shard on it first")
    return found


def _check(
    unit: Unit,
    reduce_scatter: Compressor | None,
    all_gather: Compressor | None,
    all_reduce: Compressor | None,
    all_reduce_gather: Compressor | None,
) -> None:
    group, meshes = unit.group, unit.meshes
    if any(
        isinstance(comm, Comm | CompressedAllReduce)
        for comm in (group._reduce_scatter_comm, group._all_gather_comm, group._all_reduce_hook)
    ):
        raise ValueError(f"unit {unit.name!r} already has compressed collectives; call detach() on the first handle")
    allreduce.check_gather("all_gather", all_gather)
    for compressor in (reduce_scatter, all_gather):
        if compressor is not None:
            allreduce.check_ranks(compressor, meshes.shard.size())
    if reduce_scatter is not None:
        if not reduce_scatter.traits.for_gradients:
            raise ValueError(f"reduce_scatter: {reduce_scatter.name} is for parameters (all_gather) only")
        if any(p.sharded_param.requires_grad for _, p in unit.parameters):
            require_segments(unit.apart(reduce_scatter), unit.state("reduce_scatter", 0))
    for op, compressor, found in (
        ("reduce_scatter", reduce_scatter, _compat.reduced_dtypes(group)),
        ("all_gather", all_gather, _compat.gathered_dtypes(group)),
    ):
        if compressor is not None and (others := found - set(CARRIED)):
            raise ValueError(
                f"{op}: unit {unit.name!r} moves {', '.join(sorted(map(str, others)))}, and methods carry float32, "
                "bfloat16 and float16: set MixedPrecisionPolicy(param_dtype=..., reduce_dtype=...)"
            )
    if all_gather is not None and len(dtypes := _compat.gathered_dtypes(group)) > 1:
        raise ValueError(
            f"unit {unit.name!r} has parameters of several dtypes ({', '.join(sorted(map(str, dtypes)))}), which FSDP2 "
            "gathers as bytes that no codec can carry: set MixedPrecisionPolicy(param_dtype=...), put them into "
            "separate units, or attach without all_gather"
        )
    if meshes.replicas is None:
        if all_reduce is not None:
            raise ValueError(f"all_reduce: unit {unit.name!r} is sharded over a 1-D mesh, which has no replicas")
    elif all_reduce is not None:
        allreduce.check("all_reduce", all_reduce, all_reduce_gather, meshes.replicas.size())
        if group._all_reduce_hook is not None:
            raise ValueError(f"unit {unit.name!r} already has an all-reduce hook, which all_reduce would replace")
    elif reduce_scatter is not None:
        raise ValueError(
            f"unit {unit.name!r} is sharded over a 2-D mesh (HSDP): without all_reduce, its traffic between replicas, "
            'usually the slower links, would go uncompressed and uncounted; pass all_reduce="identity" '
            "to have it exact and counted"
        )
    if all_reduce_gather is not None and all_reduce is None:
        raise ValueError("all_reduce_gather is the second half of all_reduce, which is not given")
