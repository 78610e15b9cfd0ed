"""How the ranks of a run share the work: stages of a pipeline, data-parallel ranks, ranks that divide each block."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fsdp_lab.settings.groups import ParallelConfig
from fsdp_lab.settings.reading.fields import ConfigError

DIMENSIONS = ("pp", "replicas", "shards", "tp")
"""The dimensions of the mesh of ranks, the last one fastest: ranks that divide a block are next to each other."""


@dataclass(frozen=True)
class ParallelDims:
    """``pp`` stages; in each, ``replicas`` copies of its weights, each on ``shards`` x ``tp`` ranks.

    FSDP2 shards the weights of one copy over ``shards`` ranks, a layout divides each block over ``tp``. Data-parallel
    ranks, which have batches of their own, are replicas x shards.
    """

    pp: int = 1
    replicas: int = 1
    shards: int = 1
    tp: int = 1

    @classmethod
    def of(cls, asked: ParallelConfig, world: int) -> ParallelDims:
        """How ``world`` ranks share the work, as was asked. ConfigError when they cannot."""
        each = asked.tp * asked.pp
        if world % each:
            raise ConfigError(
                [f"tp, pp: {asked.tp} x {asked.pp} ranks hold one model, and {world} ranks are no multiple of {each}"]
            )
        dp = world // each
        if asked.dp not in (0, dp):
            raise ConfigError(
                [f"dp: {asked.dp} x tp {asked.tp} x pp {asked.pp} are {asked.dp * each} ranks, {world} were started"]
            )
        if dp % asked.dp_replicas:
            raise ConfigError(
                [f"dp_replicas: {asked.dp_replicas} copies of the weights on {dp} data-parallel ranks: give a divisor"]
            )
        if asked.pp > 1 and asked.dp_replicas != dp:
            raise ConfigError(
                [
                    f"dp_replicas: {dp} data-parallel ranks of a pipeline keep a copy of their stage each, which FSDP2 "
                    f"does not shard here; give --dp_replicas {dp}"
                ]
            )
        return cls(asked.pp, asked.dp_replicas, dp // asked.dp_replicas, asked.tp)

    @property
    def dp(self) -> int:
        """How many data-parallel ranks there are."""
        return self.replicas * self.shards

    @property
    def is_plain(self) -> bool:
        """Are all ranks data-parallel ranks of FSDP2?"""
        return self.pp == self.replicas == self.tp == 1

    def data_rank(self, rank: int) -> int:
        """Which of the data-parallel ranks ``rank`` belongs to."""
        return rank // self.tp % self.dp

    def is_first_of_model(self, rank: int) -> bool:
        """Is ``rank`` the first of the ranks that hold one model together?"""
        return rank % self.tp == 0 and rank < self.dp * self.tp

    def mesh(self, device: str) -> DeviceMesh:
        """The mesh of ranks: of one dimension where all are FSDP2's, else of `DIMENSIONS`; collective."""
        if self.is_plain:
            return init_device_mesh(device, (self.shards,))
        return init_device_mesh(device, (self.pp, self.replicas, self.shards, self.tp), mesh_dim_names=DIMENSIONS)
