"""W virtual replicas in one process (--virtual_ranks), between which the optimizer exchanges something else than
gradients: the numbers and bytes of W real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import comm_compress as cc
from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.models.attached import Replicas
from fsdp_lab.models.model import Model
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import CommConfig


class Unexchanged(cc.parallel.Handles):
    """The handle of ``world`` whole replicas beside their optimizer's: nothing is exchanged, counted or remembered.

    ``exact``: what a model is evaluated inside of.
    """

    def __init__(self, world: int, exact: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__({}, cc.Ledger(), (), are_timed=True, is_stock=False)
        self._of_each = [cc.parallel.JoinedLedger({"computed": cc.Ledger()}) for _ in range(world)]
        self._evaluated = exact

    @property
    def ledgers(self) -> list[cc.Ledger]:
        """Each replica's ledger, in which there is nothing."""
        return [*self._of_each]

    def exact(self) -> AbstractContextManager[None]:
        """Inside, the model is evaluated in the dtype that it computes in."""
        return self._evaluated()

    def state_dicts(self) -> list[dict[str, Any]]:
        """An empty mapping for each replica: nothing is remembered."""
        return [{} for _ in self._of_each]

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """ValueError for other states than none, or of another number of replicas."""
        refuse_states(states, len(self._of_each))


@dataclass
class VirtualReplicaModel(Model):
    """A model that each of W replicas uses in turn; their weights are one, as they are equal after every step.

    Every replica's gradients are kept until the optimizer exchanges what it makes of them.
    """

    config: TrainConfig = field(kw_only=True)
    _replicas: cc.optim.VirtualReplicas = field(init=False)
    _computing: cc.VirtualRanks = field(init=False)

    def attach(
        self, gradients: cc.Compressor | None, parameters: cc.Compressor | None, config: CommConfig, seed: int
    ) -> Unexchanged:
        """Compresses nothing: a replica is whole, and reduces no gradients."""
        assert gradients is None, "refused early"
        assert parameters is None, "refused early"
        dtype = torch.bfloat16 if self.param_dtype == "bf16" else None
        units = [f"hf.{name}" for name in blocks_of(self.module.hf)]
        self._computing = cc.VirtualRanks(self.module, 1, units, param_dtype=dtype)  # which casts as FSDP2 does
        return Unexchanged(self.config.run.virtual_ranks, self._computing.exact)

    def between_replicas(self, seed: int) -> Replicas:
        """As `Model.between_replicas`, of all virtual replicas."""
        self._replicas = cc.optim.VirtualReplicas(self.module, self.config.run.virtual_ranks, seed=seed)
        return self._replicas

    def sync_gradients(self, on: bool) -> None:
        """Does nothing: gradients are kept, and add up, until the optimizer asks for them."""

    def by_rank(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yields every replica's batch in turn; what its backward leaves is then taken as that replica's gradients."""
        for rank, batch in enumerate(tokens.chunk(self._replicas.world)):
            with self._replicas.own_weights(rank), self._computing.gathered():
                yield batch
                self._replicas.collect(rank, torch.float32)

    def gradients(self) -> list[list[Tensor]]:
        """Every replica's gradients, in the order of the parameters."""
        by_replica: list[dict[str, Tensor]] = [{} for _ in range(self._replicas.world)]
        for fragment in self._replicas.fragments:
            for mine, collected in zip(by_replica, self._replicas.gradients(fragment), strict=True):
                mine |= collected
        names = [name for name, _ in self.module.named_parameters()]
        return [[mine[name] for name in names if name in mine] for mine in by_replica]

    def grad_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of one replica's gradients, in the order of sums of a real one; NaN where it is not finite."""
        return norm_of_one(gradients)

    def reshard(self) -> None:
        """Do nothing: virtual replicas hold whole parameters."""


def refuse_states(states: Sequence[Mapping[str, Any]], replicas: int) -> None:
    """ValueError for states that are not those of ``replicas`` whole replicas that remember nothing."""
    if len(states) != replicas or any(states):
        raise ValueError(f"compressor states do not fit {replicas} whole replicas, which have none")


def norm_of_one(gradients: list[Tensor]) -> Tensor:
    """The norm of a whole replica's gradients, in the order of sums of a real one; NaN where it is not finite."""
    norm = torch.stack(torch._foreach_norm(gradients)).double().square().sum().sqrt().float()
    return norm if math.isfinite(norm) else torch.full_like(norm, torch.nan)
