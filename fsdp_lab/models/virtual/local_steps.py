"""W virtual replicas in one process (--virtual_ranks) that train by themselves (--outer): the numbers and bytes of W
real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

import comm_compress as cc
from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.models.architectures.objective import Objective
from fsdp_lab.models.matrices import matrices_of_blocks
from fsdp_lab.models.model import Model
from fsdp_lab.models.outer import how_replicas_synchronise
from fsdp_lab.models.virtual.replicas import norm_of_one, refuse_states
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import CommConfig

OUTER: Final = "outer"


class Synchronised(cc.parallel.Handles):
    """The handle of virtual replicas that synchronise now and then: nothing else is exchanged, counted or remembered.

    ``exact``: what a model is evaluated inside of.
    """

    def __init__(self, replicas: cc.outer.VirtualReplicas, exact: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__({}, cc.Ledger(), [OUTER], are_timed=True, is_stock=replicas.method is None)
        self._replicas, self._evaluated = replicas, exact
        self._of_each = [cc.parallel.JoinedLedger({OUTER: ledger}) for ledger in replicas.ledgers]
        self.ledger = self._of_each[0]

    @property
    def ledgers(self) -> list[cc.Ledger]:
        """What each replica has sent."""
        return [*self._of_each]

    @property
    def state_bytes(self) -> int:
        """The bytes of residuals, outer parameters and the outer optimizer's state, of one replica."""
        return self._replicas.state_bytes

    def exact(self) -> AbstractContextManager[None]:
        """Inside, the model is evaluated in the dtype that it computes in."""
        return self._evaluated()

    def state_dicts(self) -> list[dict[str, Any]]:
        """The states of each replica, as a real one's handle has them."""
        return [{f"{OUTER}:{key}": state for key, state in mine.items()} for mine in self._replicas.state_dicts()]

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Put back what `state_dicts` gave. ValueError for states of other replicas, parts or methods."""
        named = [{key.partition(":")[2]: state for key, state in mine.items()} for mine in states]
        self._replicas.load_state_dicts(named)


class WholeMatrices(cc.optim.VirtualHandle):
    """The matrices of ``replicas`` whole replicas, for Muon: none is gathered, so nothing is counted or remembered."""

    def __init__(self, units: Mapping[str, Mapping[str, Sequence[nn.Parameter]]], replicas: int, seed: int) -> None:
        super().__init__(units, seed=seed)
        self.ledgers = [cc.Ledger() for _ in range(replicas)]

    def state_dicts(self) -> list[dict[str, Any]]:
        """An empty mapping for each replica."""
        return [{} for _ in self.ledgers]

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """ValueError for other states than none, or of another number of replicas."""
        refuse_states(states, len(self.ledgers))


@dataclass
class VirtualLocalModel(Model):
    """A model for each of W replicas, of which each in turn is ``module``, with one optimizer for all of them.

    AdamW and Muon update every matrix by itself, so that one optimizer does what W would do.
    """

    config: TrainConfig = field(kw_only=True)
    _replicas: cc.outer.VirtualReplicas = field(init=False)
    _computing: list[cc.VirtualRanks] = field(init=False)
    _updated: nn.Module = field(init=False)
    _reduces: bool = field(default=True, init=False)

    @property
    def updated(self) -> nn.Module:
        """A module of all replicas, which the optimizer updates."""
        return self._updated

    def attach(
        self, gradients: cc.Compressor | None, parameters: cc.Compressor | None, config: CommConfig, seed: int
    ) -> Synchronised:
        """Makes the replicas, each of them whole. ValueError for methods that cannot carry pseudo-gradients."""
        assert gradients is None, "refused early"
        assert parameters is None, "refused early"
        how = how_replicas_synchronise(self.module, config, seed)
        self._replicas = self.outer = cc.outer.VirtualReplicas(self.module, self.config.run.virtual_ranks, **how)
        self._updated = nn.ModuleDict({f"replica{rank}": one for rank, one in enumerate(self._replicas.models)})
        dtype = torch.bfloat16 if self.param_dtype == "bf16" else None
        units = [f"hf.{name}" for name in blocks_of(self.module.hf)]
        self._computing = [cc.VirtualRanks(one, 1, units, param_dtype=dtype) for one in self._replicas.models]
        self.module = self._of(0)
        return Synchronised(self._replicas, self._computing[0].exact)

    def attach_optimizer(self, config: CommConfig, seed: int) -> WholeMatrices:
        """The matrices of all replicas, each whole: nothing is gathered. ValueError for a method, which has no use."""
        if config.optimizer_compress not in ("none", "identity"):
            raise ValueError("optimizer_compress: each rank keeps whole matrices, so none is gathered; leave it out")
        units = {
            f"replica{rank}.{unit}": {f"replica{rank}.{name}": [p] for name, p in held.items()}
            for rank, one in enumerate(self._replicas.models)
            for unit, held in matrices_of_blocks(one).items()
        }
        return WholeMatrices(units, self._replicas.world, seed)

    def sync_gradients(self, on: bool) -> None:
        """Whether the next backward ends a step, or a micro-batch whose gradients are added to the next one's."""
        self._reduces = on

    def by_rank(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yields every replica's batch in turn, while that replica is ``module``."""
        for rank, batch in enumerate(tokens.chunk(self._replicas.world)):
            self.module = self._of(rank)
            with self._replicas.replica(rank), self._computing[rank].gathered():
                yield batch
                self._computing[rank].collect(0)
            if self._reduces:
                self._computing[rank].reduce()  # of one rank: its own gradients, in float32
        self.module = self._of(0)

    def gradients(self) -> list[list[Tensor]]:
        """Every replica's gradients, in the order of the parameters."""
        return [[p.grad for p in one.parameters() if p.grad is not None] for one in self._replicas.models]

    def grad_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of one replica's gradients, in the order of sums of a real one; NaN where it is not finite."""
        return norm_of_one(gradients)

    def reshard(self) -> None:
        """Do nothing: virtual replicas hold whole parameters."""

    def _of(self, rank: int) -> Objective:
        return cast(Objective, self._replicas.models[rank])
