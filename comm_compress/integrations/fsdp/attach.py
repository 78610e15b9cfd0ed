"""Compressed collectives inside FSDP2: `attach` and the handle it returns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn

from comm_compress.core.compressor import Compressor
from comm_compress.core.state import State
from comm_compress.drive.comparison import Comparisons
from comm_compress.integrations.allreduce import GradientAllReduce
from comm_compress.integrations.fsdp import _compat
from comm_compress.integrations.fsdp.backward import Backward
from comm_compress.integrations.fsdp.frozen import FrozenReplicas, FrozenWatch, Watched
from comm_compress.integrations.fsdp.hooks import (
    CompressedAllGather,
    CompressedAllReduce,
    CompressedReduceScatter,
    Unit,
    require_segments,
)
from comm_compress.integrations.fsdp.overlap import Reductions
from comm_compress.integrations.fsdp.preconditions import Methods, check, frozen_advice, units_of
from comm_compress.integrations.fsdp.prefetch import Prefetch
from comm_compress.integrations.handle import BaseHandle
from comm_compress.integrations.optimizer_steps import OptimizerSteps
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.registry import AnyMethod


class Handle(BaseHandle):
    """What `attach` installed: its ledger, its state, and the way out."""

    def __init__(self, methods: Methods) -> None:
        super().__init__()
        self.reduce_scatter, self.all_gather, self._methods = methods.reduce_scatter, methods.all_gather, methods
        self._gathers: list[tuple[Any, CompressedAllGather]] = []
        self._reductions: list[CompressedReduceScatter] = []
        self._by_key: dict[str, State] = {}
        self._undo: list[tuple[Any, str, Any]] = []
        self._alone: dist.ProcessGroup | None = None
        self._prefetch: Prefetch | None = None
        self._under_way: Reductions | None = None
        self._frozen: list[Watched] = []
        self._frozen_watch: FrozenWatch | None = None

    def _states(self) -> dict[str, State]:
        return self._by_key

    @property
    def frozen_bytes(self) -> int:
        """The bytes that ``keep_frozen`` holds on this rank."""
        return sum(unit.replicas.num_bytes for unit in self._frozen)

    @property
    def state_bytes(self) -> int:
        """The bytes that residuals, other states and frozen parameters hold on this rank."""
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
        if (hop := self._methods.inexact_hop) is not None:
            raise ValueError(
                f"compare: between replicas gradients also go by {hop} (all_reduce), whose error cannot "
                'be compared; all_reduce="identity" without all_reduce_gather leaves that of the reduce-scatter'
            )
        comparisons = Comparisons(lambda: self._set_comparisons(None))
        self._set_comparisons(comparisons)
        return comparisons

    def _set_comparisons(self, comparisons: Comparisons | None) -> None:
        for reduction in self._reductions:
            reduction.comparisons = comparisons

    def detach(self) -> None:
        """Give FSDP2 its own collectives back."""
        if self._under_way is not None:
            self._under_way.finish()  # nothing, unless a backward has raised
            self._under_way = None
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

    def _install(
        self, model: nn.Module, units: list[Unit], keep_frozen: bool, prefetch: int, overlap_reduce: int, seed: int
    ) -> None:
        """Put the methods into FSDP2's places, unit by unit; what `detach` takes out again."""
        self.ledger.uncounted = self._methods.uncounted(units)
        if prefetch:
            self._prefetch = Prefetch(model, prefetch)
        if self._methods.reduce_gradients:
            self.steps = OptimizerSteps(model)
        if overlap_reduce and self._methods.reduce_scatter is not None:
            self._under_way = Reductions(overlap_reduce)
        for unit in units:
            self._install_unit(unit, keep_frozen, seed)
        if keep_frozen:
            self._frozen_watch = FrozenWatch(model, self._frozen, self.ledger)

    def _install_unit(self, unit: Unit, keep_frozen: bool, seed: int) -> None:
        group, methods = unit.group, self._methods
        if self.steps is not None:
            unit = unit._replace(backward=Backward(group, unit.parameters, self.steps, self._under_way))
            self._set(group, "post_backward", unit.backward)
        if methods.reduce_scatter is not None:
            self._install_reduce_scatter(unit, methods.reduce_scatter, seed)
        if methods.all_reduce is not None:
            self._install_all_reduce(unit, methods.all_reduce, methods.all_reduce_gather, seed)
        if methods.all_gather is not None:
            self._install_all_gather(unit, methods.all_gather, keep_frozen, seed)
        if unit.backward is not None:
            if unit.meshes.shard.size() > 1:  # FSDP2 divides twice by a divide factor when one rank is to sum
                self._set(group, "force_sum_reduction_for_comms", True)
            keys = (f"reduce_scatter/{unit.name}", f"all_reduce/{unit.name}")
            unit.backward.states = [self._by_key[key] for key in keys if key in self._by_key]

    def _install_reduce_scatter(self, unit: Unit, method: Compressor, seed: int) -> None:
        state = self._by_key[f"reduce_scatter/{unit.name}"] = unit.state("reduce_scatter", seed)
        scatter = CompressedReduceScatter(state, unit.apart(method), self.ledger, self.workspaces, unit, self._scale)
        self._reductions.append(scatter)
        self._set(unit.group, "_reduce_scatter_comm", scatter)

    def _install_all_reduce(self, unit: Unit, method: Compressor, gather: Compressor | None, seed: int) -> None:
        state = self._by_key[f"all_reduce/{unit.name}"] = unit.state("all_reduce", seed)
        back = unit.apart(gather) if gather is not None else None
        reduction = GradientAllReduce(state, unit.apart(method), back, self.ledger, self.workspaces, self._scale)
        self._set(unit.group, "_all_reduce_hook", CompressedAllReduce(unit, reduction))
        self._set(unit.meshes.info, "replicate_process_group", self._this_rank_alone())

    def _install_all_gather(self, unit: Unit, method: Compressor, keep_frozen: bool, seed: int) -> None:
        state = self._by_key[f"all_gather/{unit.name}"] = unit.state("all_gather", seed)
        state.segments = state.parameters = unit.gathered_segments(keep_frozen)
        method = unit.apart(method)
        gather = CompressedAllGather(state, method, self.ledger, self.workspaces, unit)
        if keep_frozen:
            gather.frozen = FrozenReplicas()
            self._frozen.append(Watched(gather.frozen, unit.meshes.shard, unit.parameters))
        if _compat.trainable(unit.parameters) or not keep_frozen:
            require_segments(method, state)
        self._gathers.append((unit.group, gather))
        self._set(unit.group, "_all_gather_comm", gather)

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
    overlap_reduce: int = 2,
    pieces: Mapping[str, str] | None = None,
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
    ``overlap_reduce``: on a CPU, let the compressed reduce-scatters of at most so many units be under way while
    backward goes on (`Reductions`); 0: it waits for each. No number changes, and all are over when backward ends. A
    unit of which FSDP2 needs the sum at once (a gradient is kept to be added to, a hook of the user's is called, there
    are replicas, a cast to another dtype, CPU offload) is waited for. It takes the memory of so many units' gradients.
    On CUDA FSDP2 does so by itself.
    ``pieces``: which part of a larger parameter this rank's shard group holds, by the name of the plain parameter
    ("tp=1", say), where a model was divided by hand; of DTensors that tensor parallelism shards it is known. Parameters
    that several groups hold whole are then encoded apart from the pieces, so that they stay equal.
    ``seed``: of the methods' own random numbers; no global generator is touched. FSDP2 is set
    to undivided sums, which it divides itself after the float32 sum.
    Raises ValueError when nothing is sharded, when a method's ``layers`` name no parameter, when a method cannot do
    what is asked of it, or when a unit is of a kind whose traffic would not all be compressed or counted.
    """
    methods = Methods.built(
        reduce_scatter=reduce_scatter, all_gather=all_gather, all_reduce=all_reduce, all_reduce_gather=all_reduce_gather
    )
    if prefetch < 0:
        raise ValueError(f"prefetch = {prefetch!r}: must be 0 (none) or positive")
    if overlap_reduce < 0:
        raise ValueError(f"overlap_reduce = {overlap_reduce!r}: must be 0 (none) or positive")
    units = [unit._replace(part_of=pieces or {}) for unit in units_of(model)]
    if keep_frozen:
        methods = methods._replace(all_gather=methods.all_gather or UNCOMPRESSED)
    elif dist.get_rank() == 0 and (advice := frozen_advice(units)):
        warnings.warn(advice, stacklevel=2)
    check(units, methods)
    handle = Handle(methods)
    handle._install(model, units, keep_frozen, prefetch, overlap_reduce, seed)
    return handle
