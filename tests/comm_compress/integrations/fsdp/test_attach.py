"""`attach` finds a model's parameters in whatever state it comes in."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from tests.comm_compress.integrations.test_fsdp import Net, batch, full, loss_of, sharded, train, worst
from tests.distributed import run_ranks


def _replaced() -> tuple[float, list[str]]:
    """As transformers loads a model that it shards: first the sharding, on the meta device, then new parameters."""
    stock = sharded()
    values = full(stock)
    model, mesh = Net().to("meta"), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in [*model.blocks, model.branch]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module_name, module in model.named_modules():
        for name, p in list(module.named_parameters(recurse=False)):
            whole = values[f"{module_name}.{name}".lstrip(".")]
            loaded = torch.distributed.tensor.distribute_tensor(whole, p.device_mesh, p.placements)
            setattr(module, name, nn.Parameter(loaded))
    handle = cc.attach(model, reduce_scatter=cc.make("identity"), all_gather=cc.make("identity"))
    distance = worst(train(model), train(stock))
    return distance, sorted({row for key in handle.state_dict() for row in [key.partition("/")[2]]})


def test_parameters_that_a_loader_put_in_the_place_of_the_sharded_ones() -> None:
    for distance, units in run_ranks(2, _replaced):
        assert distance == 0
        assert units == ["blocks.0", "blocks.1", "branch", "root"]


def _gathered() -> float:
    """Between two steps of evaluation FSDP2 keeps the root's parameters, gathered."""
    models = sharded(), sharded()
    for model in models:
        with torch.no_grad():
            loss_of(model, batch(dist.get_rank(), 9))
    cc.attach(models[0], reduce_scatter=cc.make("identity"), all_gather=cc.make("identity"))
    return worst(train(models[0]), train(models[1]))


def test_a_model_that_has_just_been_evaluated() -> None:
    assert run_ranks(2, _gathered) == [0, 0]
