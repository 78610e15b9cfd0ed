"""FSDP2 inside each replica: every shard is synchronised with its likes. Two replicas of two shards, on real ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import comm_compress as cc
from comm_compress.integrations.replicas.fragments import local
from tests.comm_compress.integrations.outer.training import adam, digest, flat, inner_step
from tests.distributed import run_ranks


class Net(nn.Module):
    """Sizes that two ranks do not share evenly; the second layer is a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 17), nn.Linear(17, 5)
        self.one = nn.Parameter(torch.ones(1, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x))) * self.one  # type: ignore[no-any-return]


def _sharded(mesh: DeviceMesh) -> Net:
    model = Net()
    fully_shard(model.last, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _whole(model: nn.Module) -> list[list[float]]:
    return [p.full_tensor().flatten().tolist() for p in model.parameters() if isinstance(p, DTensor)]


def _train(model: Any, optimizer: Any, handle: Any, replica: int, steps: range) -> None:
    for step in steps:
        inner_step(model, optimizer, replica, step, handle)
        handle.step()


def _two_by_two(settings: dict[str, Any]) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    replica = mesh["replica"].get_local_rank()
    model = _sharded(mesh["shard"])
    inside = {} if settings["method"] == "identity" else {"reduce_scatter": "int8", "all_gather": "int8"}
    cc.attach(model, **inside)
    handle = cc.outer.attach(model, mesh["replica"], **settings)
    optimizer = adam(model.parameters())
    _train(model, optimizer, handle, replica, range(5))
    saved = copy.deepcopy((handle.state_dict(), optimizer.state_dict()))
    weights = [local(p).clone() for p in model.parameters()]
    _train(model, optimizer, handle, replica, range(5, 8))
    found: dict[str, Any] = {
        "weights": _whole(model),
        "shards": digest(model.parameters()),
        "state": flat(handle.state_dict()),
    }
    found["bits"] = handle.bits
    again = _sharded(mesh["shard"])
    cc.attach(again, **inside)
    second = cc.outer.attach(again, mesh["replica"], **settings)
    with torch.no_grad():
        for p, value in zip(again.parameters(), weights, strict=True):
            local(p).copy_(value)
    optimizer = adam(again.parameters())
    second.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    _train(again, optimizer, second, replica, range(5, 8))
    found["resumes"] = flat(second.state_dict()) == found["state"] and digest(again.parameters()) == found["shards"]
    with second.outer_parameters(), torch.no_grad():
        found["lent"] = again(torch.ones(1, 6)).tolist()
    found["own"] = again(torch.ones(1, 6)).tolist()
    return found


SETTINGS: list[dict[str, Any]] = [
    {"every": 4, "method": "identity", "outer_optimizer": cc.outer.nesterov()},
    {"every": 3, "method": "topk ratio=0.2", "exchange": "all_gather", "overlap": 1},
    {"every": 4, "method": "int8", "by_gradient": ["first.weight", "last"], "gradient_every": 2},
]


def _ddp_inside() -> list[str]:
    """This rank's parameters after each of four steps of DDP inside two replicas that synchronise every second one."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "ddp"))
    model = DistributedDataParallel(Net(), process_group=mesh["ddp"].get_group())
    handle, optimizer, found = cc.outer.attach(model, mesh["replica"], "int4", every=2), adam(model.parameters()), []
    for step in range(4):
        inner_step(model, optimizer, dist.get_rank(), step)
        handle.step()
        found.append(digest(model.parameters()))
    return found


def _runs() -> dict[str, Any]:
    found: dict[str, Any] = {"runs": [_two_by_two(settings) for settings in SETTINGS], "refusals": []}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    for model, group in ((_sharded(mesh), mesh["replica"]), (_sharded(mesh["shard"]), None), (Net(), mesh)):
        with pytest.raises(ValueError, match=r"\w") as error:
            cc.outer.attach(model, group, every=2)
        found["refusals"].append(str(error.value))
    nan = _sharded(mesh["shard"])
    handle = cc.outer.attach(nan, mesh["replica"], "int8", every=1)
    if dist.get_rank() == 3:
        with torch.no_grad():
            local(nan.first.weight)[0, 0] = torch.nan
    handle.step()
    found["nan"] = (handle.finite, bool(nan(torch.ones(1, 6)).isfinite().any()))
    found["ddp"] = _ddp_inside()
    return found


def test_replicas_of_shards() -> None:
    by_rank = run_ranks(4, _runs)
    for run, settings in enumerate(SETTINGS):
        seen = [found["runs"][run] for found in by_rank]
        for a, b in ((0, 2), (1, 3)):  # the same shard of both replicas
            mine, theirs = ({k: v for k, v in seen[r]["state"].items() if "outer/parameters" in k} for r in (a, b))
            assert mine == theirs
            if not settings.get("overlap"):
                assert seen[a]["shards"] == seen[b]["shards"], "applied after the last step"
        assert all(s["resumes"] for s in seen)
        assert all(s["lent"] == seen[0]["lent"] for s in seen)
    unsharded = cc.outer.VirtualReplicas(Net(), 2, adam, "identity", every=4, outer_optimizer=cc.outer.nesterov())
    for step in range(8):
        for rank in range(2):
            with unsharded.worker(rank) as (module, optimizer):
                inner_step(module, optimizer, rank, step)
        unsharded.step()
    expected = [p.detach().flatten() for p in unsharded.models[0].parameters()]
    for found in by_rank:
        for value, whole in zip(found["runs"][0]["weights"], expected, strict=True):
            torch.testing.assert_close(torch.tensor(value), whole)
        assert found["runs"][0]["bits"] > 0
        for message, word in zip(found["refusals"], ["HSDP", "hold the same shard", "2 dimensions"], strict=True):
            assert word in message
    for step in range(4):
        weights = [found["ddp"][step] for found in by_rank]
        assert weights[:2] == [weights[0]] * 2, "DDP keeps a replica's ranks equal"
        assert (weights[0] == weights[2]) == (step % 2 == 1), "replicas are equal after a synchronisation only"
    assert [found["nan"] for found in by_rank] == [(True, False), (False, False)] * 2, "rank 3's shard has a NaN"
