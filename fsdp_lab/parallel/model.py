"""The model of a run whose ranks are arranged in several dimensions, as the training loop sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

import comm_compress as cc
from fsdp_lab.models import Model
from fsdp_lab.models.attached import Replicas
from fsdp_lab.models.matrices import how_matrices_travel, matrices_of_blocks
from fsdp_lab.models.model import Placed
from fsdp_lab.models.saved.weights import Weight
from fsdp_lab.models.shards.sharding import Held, held, whole_tensor
from fsdp_lab.models.sketch import Sketch
from fsdp_lab.parallel.local_steps import attach_outer, norm_of_own
from fsdp_lab.parallel.models.divided import Divided
from fsdp_lab.parallel.objectives import Replicated
from fsdp_lab.parallel.pipeline import Pipeline
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.groups import CommConfig
from fsdp_lab.settings.methods import of_replicas

_ITEMSIZE = {"fp32": 4, "bf16": 2, "fp16": 2}
Units = dict[str, list[tuple[str, nn.Parameter]]]


@dataclass(kw_only=True)
class ParallelModel(Model):
    """A model on the ranks of an `ParallelDims`: sharded or replicated over data-parallel ranks, and perhaps divided.

    ``sketch``: knows the whole parameters, and which piece of each is here. ``divided``: the model, if it is divided.
    ``pipeline``: the stages of this rank, if there are several. ``are_local``: replicas reduce no gradients; they train
    by themselves (--outer), or their optimizer exchanges something else and keeps them equal.
    """

    ranks: Ranks
    sketch: Sketch
    divided: Divided | None = None
    pipeline: Pipeline | None = None
    are_local: bool = False
    _sums: list[cc.parallel.ReplicatedGradients] = field(default_factory=list, init=False)
    _stock: cc.parallel.StockSteps = field(init=False)
    _reduces: bool = field(default=True, init=False)
    _replicas: Replicas | None = field(default=None, init=False)

    # ---- what is exchanged ----------------------------------------------------------------------------------

    def attach(
        self, gradients: cc.Compressor | None, parameters: cc.Compressor | None, config: CommConfig, seed: int
    ) -> cc.parallel.Handles:
        """Compresses what ranks exchange by the methods given; activations by those of the wiring.

        The sum of gradients over replicas goes by the gradients' method, or by one of its own (``replica_compress``).
        It comes back by the same, where that brings back every element by itself (`cc.parallel.way_back`), else
        exactly. ValueError for methods that have nothing to carry here.
        """
        handles: dict[str, cc.BaseHandle] = {}
        self._stock = cc.parallel.StockSteps(self.ranks.device)
        if parameters is not None and not self._is_sharded:
            raise ValueError("param_compress: no parameters are gathered where each rank keeps its own; leave it out")
        if config.replica_compress != "none" and not isinstance(self.module, FSDPModule):
            raise ValueError(
                "replica_compress: each replica is one rank here, and their sum goes by comm_compress; leave it out, "
                "or start more ranks than dp_replicas"
            )
        if isinstance(self.module, FSDPModule):
            handles["fsdp"] = self._attach_fsdp(gradients, parameters, config, seed)
        elif isinstance(self.module, Replicated):
            if gradients is None:
                self._stock.add_replicas(self.module.ddp)
            else:
                handles["ddp"] = cc.ddp.attach(self.module.ddp, gradients, cc.parallel.way_back(gradients), seed)
        handles |= self._attach_sums(gradients, seed)
        if gradients is not None and not any(self.ranks.gather(bool(handles))):  # a stage may have none, others some
            raise ValueError("comm_compress: no gradients are exchanged between these ranks; leave it out")
        if config.outer != "none":
            self.replica = self._rank_in("replicas")
            self.outer = handles["outer"] = attach_outer(self.module, self.ranks.mesh["replicas"], config, seed)
        if self.divided is not None:
            wiring = self.divided.wiring
            handles |= {"activations": wiring.activations, "exact": wiring.exact}
        return cc.parallel.Handles(handles, self._stock.ledger, self._operations(), self._are_timed, self._has_stock)

    def attach_optimizer(self, config: CommConfig, seed: int) -> cc.optim.Handle:
        """As `Model.attach_optimizer`; ValueError for a method where each rank has whole matrices."""
        handle = cc.optim.attach(matrices_of_blocks(self.module), **how_matrices_travel(config, seed))
        if config.optimizer_compress not in ("none", "identity") and not handle.sends:
            raise ValueError("optimizer_compress: each rank keeps whole matrices, so none is gathered; leave it out")
        return handle

    def between_replicas(self, seed: int) -> Replicas:
        """As `Model.between_replicas`, of this rank's part of its replica."""
        self._replicas = cc.optim.between(self.module, self.ranks.mesh["replicas"], seed=seed)
        return self._replicas

    def _attach_fsdp(
        self, gradients: cc.Compressor | None, parameters: cc.Compressor | None, config: CommConfig, seed: int
    ) -> cc.Handle:
        between = None
        if gradients is not None and self._mesh_size("replicas") > 1 and not self.are_local:
            between = of_replicas(config) or gradients
        if parameters is None:
            self._stock.add_gathers(self.module, _ITEMSIZE[self.param_dtype], config.fsdp_reshard)
        if gradients is None:
            self._stock.add_reductions(self.module, _ITEMSIZE[config.comm_dtype])
        return cc.attach(
            self.module,
            reduce_scatter=gradients,
            all_gather=parameters,
            all_reduce=between,
            all_reduce_gather=None if between is None else cc.parallel.way_back(between),
            prefetch=config.fsdp_prefetch,
            overlap_reduce=config.fsdp_overlap_reduce,
            pieces={f"hf.{name}": f"tp={self._rank_in('tp')}" for name in self.sketch.pieces},
            seed=seed,
        )

    def _attach_sums(self, gradients: cc.Compressor | None, seed: int) -> dict[str, cc.BaseHandle]:
        """What is summed after backward, in this order: what a layout replicates, the replicas of a divided model, and
        the weight that two stages share, which must be the same on both at last.
        """
        groups: dict[str, tuple[Units, str]] = {}
        if self.divided is not None and self.divided.division.summed:
            groups["layout"] = self.divided.units(self.divided.division.summed), "tp"
        if self.divided is not None and not self._is_fsdp and self._mesh_size("replicas") > 1:
            groups["replicas"] = self._replicated_units(self.divided), "replicas"
        made = {
            name: cc.parallel.ReplicatedGradients(
                units,
                self._group(dim),
                gradients,
                None if gradients is None else cc.parallel.way_back(gradients),
                seed=seed,
                mean=dim == "replicas",
                count_stock=True,
            )
            for name, (units, dim) in groups.items()
        }
        if self.pipeline is not None:
            back = None if gradients is None else cc.parallel.way_back(gradients)
            tied = self.pipeline.sum_of_tied(gradients, back, seed)
            made |= {} if tied is None else {"tied": tied}
        self._sums = list(made.values())
        return dict(made)

    def _replicated_units(self, divided: Divided) -> Units:
        """All parameters by block, pieces apart from what the ranks of a layout hold whole: that must stay equal."""
        pieces = divided.division.pieces.keys()
        whole = {name for name, _ in divided.hf.named_parameters()} - pieces
        return {**divided.units(pieces), **{f"{unit} (whole)": named for unit, named in divided.units(whole).items()}}

    def _operations(self) -> list[cc.Op]:
        """The operations that this run has, on any rank."""
        ops: set[cc.Op] = {"activations", "activation_gradients"} if self.divided is not None else set()
        if self._is_sharded:
            ops |= {"reduce_scatter", "all_gather"}
        if self.outer is not None:
            ops.add("outer")
        elif not self.are_local and (self._mesh_size("replicas") > 1 or any(self.ranks.gather(bool(self._sums)))):
            ops.add("all_reduce")  # where replicas are local, what their optimizer exchanges is counted beside these
        return list(ops)

    @property
    def _has_stock(self) -> bool:
        """Is a byte of this traffic sent by collectives that are not ours?"""
        carried = None if self.divided is None else self.divided.wiring.activations
        wired = () if carried is None else (carried.forward, carried.backward)
        is_exact = self.outer is not None and self.outer.method is None
        is_summed = any(gradients.method is None for gradients in self._sums)
        return self._stock.has_any or None in wired or is_exact or is_summed

    @property
    def _are_timed(self) -> bool:
        """Is all time in collectives known? Not that of stock ones in FSDP2 and DDP, and of a pipeline's messages."""
        return self.pipeline is None and not self._stock.has_any

    # ---- step by step ---------------------------------------------------------------------------------------

    def sync_gradients(self, on: bool) -> None:
        """Whether the next backward exchanges gradients or only accumulates them on each rank."""
        self._reduces = on
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(on)
        if isinstance(self.module, Replicated):
            self.module.ddp.require_backward_grad_sync = on

    def by_rank(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yields the batch; afterwards sums the gradients that several ranks have a part of."""
        with nullcontext() if self._replicas is None else self._replicas.own_weights():
            yield tokens
        self._stock.micro_batch(self._reduces)
        if self._reduces:
            for gradients in self._sums:
                gradients.reduce()

    def grad_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of the whole model's gradients, each counted once, the same number on every rank. Collective.

        Of a replica that reduces none it is the norm of its own ones, or NaN on all as soon as one's is not finite.
        """
        replica = self._rank_in("replicas") if self.are_local else None
        named = [(name, p) for name, p in self.module.hf.named_parameters() if p.grad is not None]
        mine = [_local(p.grad) for name, p in named if self._is_counted(name, replica or 0)]
        norms = torch.stack(torch._foreach_norm(mine)) if mine else torch.zeros(1, device=self.ranks.device)
        own = norms.double().square().sum()
        if replica is not None:
            return norm_of_own(own, replica, self._mesh_size("replicas"), self.ranks)
        total: Tensor = self.ranks.sum(own).sqrt().float()
        return total

    def reshard(self) -> None:
        """Frees the parameters that FSDP2's root unit keeps gathered."""
        if isinstance(self.module, FSDPModule):
            self.module.reshard()

    # ---- whole parameters -----------------------------------------------------------------------------------

    def pieces(self) -> dict[str, Placed]:
        """Which parameters are a piece of a whole one here."""
        return {f"hf.{name}": Placed(piece, self.sketch.shapes[name]) for name, piece in self.sketch.pieces.items()}

    def first_names(self) -> dict[str, str]:
        """As `Sharded.first_names`: of the whole model, since stages may have one of two names each."""
        return {f"hf.{name}": f"hf.{first}" for name, first in self.sketch.first_names.items()}

    def whole_weights(self) -> dict[str, Weight]:
        """The whole float32 weights, which every rank helps to make."""
        here = {
            self.sketch.first_names[name]: (held(p, self.sketch.pieces.get(name)), self._is_counted(name))
            for name, p in self.module.hf.named_parameters()
        }
        weights = {}
        for name, shape in self.sketch.shapes.items():
            if self.sketch.first_names[name] == name:
                part, is_counted = here.get(name, (Held(torch.empty(0, device=self.ranks.device), []), False))
                gather = partial(whole_tensor, part, shape, is_counted, dist.all_reduce)
                weights[name] = Weight(4 * shape.numel(), gather)
        return weights

    def _is_counted(self, name: str, replica: int = 0) -> bool:
        """Is this the rank of ``replica`` that speaks for the parameter, or its piece, among those that hold it?"""
        divided = name in self.sketch.pieces or self._rank_in("tp") == 0
        return divided and self._rank_in("replicas") == replica and self.sketch.first_names[name] == name

    # ---- ranks ----------------------------------------------------------------------------------------------

    @property
    def _is_fsdp(self) -> bool:
        return isinstance(self.module, FSDPModule)

    @property
    def _is_sharded(self) -> bool:
        return self._is_fsdp and self._mesh_size("shards") > 1

    def _group(self, dim: str) -> dist.ProcessGroup:
        return self.ranks.mesh[dim].get_group()

    def _mesh_size(self, dim: str) -> int:
        return int(self.ranks.mesh[dim].size())

    def _rank_in(self, dim: str) -> int:
        return int(self.ranks.mesh[dim].get_local_rank())


def _local(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
