"""The ways to run one model that `fsdp-lab bench layouts` compares: data parallel, in a layout, in a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import comm_compress as cc
from experiments.bench.traffic.layouts.asked import Asked
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.architectures.families import blocks_of
from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.division.wiring import Wiring
from fsdp_lab.parallel.models.choice import divided_model
from fsdp_lab.parallel.pipeline import SCHEDULES, Pipeline
from fsdp_lab.parallel.planning.measuring.models import whole_model
from fsdp_lab.parallel.planning.plan import DATA_PARALLEL


@dataclass
class Arm:
    """One way to run the model: ``step`` computes all gradients; ``ledgers`` count what our collectives send."""

    asked: Asked
    carried: str
    step: Callable[[], object]
    ledgers: list[cc.Ledger]

    def counted(self) -> int:
        """Bytes that this rank sent by our collectives so far."""
        return sum(ledger.totals().sent_bytes for ledger in self.ledgers)


def made(asked: Sequence[Asked], preset: str, batch: Tensor) -> list[Arm]:
    """The arms, on every rank of the default group."""
    alone: Any = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    arms = []
    for one in asked:
        if one.layout in DATA_PARALLEL:
            arms.append(data_parallel(one, preset, batch))
        elif one.layout in SCHEDULES:
            arms.append(in_pipeline(one, preset, batch, alone))
        else:
            arms.append(in_layout(one, preset, batch))
    return arms


def data_parallel(asked: Asked, preset: str, batch: Tensor) -> Arm:
    """FSDP2 or DDP, each rank with its sequences of the batch."""
    module: Any = objective(whole_model(preset))
    mine = batch.chunk(dist.get_world_size())[dist.get_rank()]
    targets, method = module.num_targets(mine), _carrier(asked.gradients)
    ledgers = []
    if asked.layout == "ddp":
        module = DistributedDataParallel(module)
        if method is not None:
            ledgers.append(cc.ddp.attach(module, method).ledger)
    else:
        for block in blocks_of(module.hf).values():
            fully_shard(block)
        fully_shard(module)
        if method is not None:
            ledgers.append(cc.attach(module, reduce_scatter=method, all_gather=method).ledger)

    def step() -> None:
        module.zero_grad()
        (module(mine) / targets).backward()

    return Arm(asked, asked.gradients, step, ledgers)


def in_layout(asked: Asked, preset: str, batch: Tensor) -> Arm:
    """A layout of `fsdp_lab.parallel`: every rank has all sequences, and a part of the model or of the positions."""
    carrier = _carrier(asked.method)
    exact = None if carrier is None else "identity"
    group, shares = dist.group.WORLD, asked.shares or (1.0,) * dist.get_world_size()
    assert group is not None
    activations, exact_places = cc.parallel.Activations(carrier, carrier), cc.parallel.Activations(exact, exact)
    wiring = Wiring(LAYOUTS[asked.layout], group, shares, activations, exact_places)
    model = divided_model(whole_model(preset), wiring)
    replicas = cc.parallel.ReplicatedGradients(model.replicated(), group, _carrier(asked.gradients))

    def step() -> None:
        model.zero_grad()
        (model(batch) / model.num_targets(batch)).backward()
        replicas.reduce()

    name = (
        asked.method
        if asked.gradients == "none" or not model.division.summed
        else f"{asked.method} + {asked.gradients}"
    )
    return Arm(asked, name, step, [activations.ledger, exact_places.ledger, replicas.ledger])


def in_pipeline(asked: Asked, preset: str, batch: Tensor, alone: dist.ProcessGroup) -> Arm:
    """A schedule of torch's, each rank with a stage of whole blocks."""
    carrier, group = _carrier(asked.method), dist.group.WORLD
    assert group is not None
    activations = cc.parallel.Activations(carrier, carrier)
    whole = Wiring(LAYOUTS["tp"], alone, [1], cc.parallel.Activations(), cc.parallel.Activations())
    model = divided_model(whole_model(preset), whole)
    blocks = [int(share) for share in asked.shares] or None
    pipeline = Pipeline(model, asked.layout, asked.micro_batches, group, activations, batch.shape[1], blocks)

    def step() -> None:
        model.zero_grad()
        pipeline.step(batch)
        pipeline.reduce_tied()

    return Arm(asked, asked.method, step, [activations.ledger])


def _carrier(method: str) -> str | None:
    return None if method == "none" else method
