"""States through torch.distributed.checkpoint, over real ranks: whole, each rank's own, or refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import comm_compress as cc
from comm_compress.integrations import ddp
from tests.comm_compress.integrations.fsdp.test_hsdp import replicated
from tests.comm_compress.integrations.test_ddp import wrapped
from tests.comm_compress.integrations.test_fsdp import batch, full, loss_of, sharded, worst
from tests.distributed import preload, run_ranks

preload("torch.distributed.checkpoint")

METHODS: dict[str, dict[str, Any]] = {
    "feedback": {"reduce_scatter": "topk ratio=0.2"},
    "delta": {"reduce_scatter": "topk ratio=0.2", "all_gather": "delta"},
    "powersgd": {"reduce_scatter": {"method": "powersgd", "rank": 2, "min_compression_rate": 0.1}},
    "dgc": {"reduce_scatter": {"method": "dgc", "ratio": 0.1}},
    "lowrank": {"reduce_scatter": {"method": "lowrank", "rank": 1}, "all_gather": "delta"},
    "entropy": {"reduce_scatter": {"method": "int4", "entropy": "rans", "error_feedback": {"dtype": "int8"}}},
    "layers": {"reduce_scatter": {"method": "topk", "ratio": 0.3, "layers": {"head.*": "int8", "*.bias": "identity"}}},
    "warm-up": {"reduce_scatter": {"method": "topk", "ratio": 0.2, "warmup_steps": 3}},
    "stochastic": {"reduce_scatter": {"method": "qsgd", "bits": 4}},
}


def train(model: nn.Module, first: int, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(first, first + steps):
        loss_of(model, batch(dist.get_rank(), step)).backward()
        optimizer.step()
        optimizer.zero_grad()


def resumed(straight: nn.Module, fresh: nn.Module, folder: str, **methods: Any) -> float:
    """How far a run that was saved after two steps and resumed in ``fresh`` ends from the uninterrupted one."""
    handle = cc.attach(straight, **methods)
    train(straight, 0, 2)
    dcp.save({"model": straight.state_dict(), "comm": handle.rank_states()}, checkpoint_id=folder)
    train(straight, 2, 3)
    with torch.no_grad():
        for p in fresh.parameters():
            p.zero_()
    second = cc.attach(fresh, **methods)
    template = {"model": fresh.state_dict(), "comm": second.rank_states()}
    dcp.load(template, checkpoint_id=folder)
    train(fresh, 2, 3)
    return worst(full(straight), full(fresh))


def _resumed(folder: str) -> dict[str, float]:
    return {name: resumed(sharded(), sharded(), f"{folder}/{name}", **methods) for name, methods in METHODS.items()}


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    for distances in run_ranks(2, _resumed, str(tmp_path), timeout=300):
        assert distances == dict.fromkeys(METHODS, 0)


def _resumed_replicas(folder: str) -> dict[str, float]:
    methods = {"all_reduce": "topk ratio=0.3", "all_reduce_gather": "delta"}
    return {
        name: resumed(replicated(), replicated(), f"{folder}/{name}", reduce_scatter=inside, **methods)
        for name, inside in (("exact", "identity"), ("both", "topk ratio=0.3"))
    }


def test_a_resumed_run_of_replicas_is_the_uninterrupted_one(tmp_path: Path) -> None:
    assert run_ranks(4, _resumed_replicas, str(tmp_path), timeout=300) == [{"exact": 0, "both": 0}] * 4


def _resumed_ddp(folder: str) -> tuple[float, bool]:
    options = {"find_unused_parameters": True, "bucket_cap_mb": 0.0002}  # DDP keeps its first buckets
    straight, fresh = wrapped(**options), wrapped(**options)
    handle = ddp.attach(straight, "topk ratio=0.2")
    dcp.save({"comm": handle.rank_states()}, checkpoint_id=f"{folder}/nothing")
    train(straight, 0, 2)
    dcp.save({"comm": handle.rank_states()}, checkpoint_id=f"{folder}/two")
    fresh.load_state_dict(straight.state_dict())
    train(straight, 2, 2)
    second = ddp.attach(fresh, "topk ratio=0.2")
    dcp.load({"comm": second.rank_states()}, checkpoint_id=f"{folder}/nothing")
    nothing = second.state_dict() == {}
    dcp.load({"comm": second.rank_states()}, checkpoint_id=f"{folder}/two")
    train(fresh, 2, 2)
    distances = [float((a - b).abs().max()) for a, b in zip(straight.parameters(), fresh.parameters(), strict=True)]
    return max(distances), nothing


def test_states_of_buckets_come_back(tmp_path: Path) -> None:
    assert run_ranks(2, _resumed_ddp, str(tmp_path)) == [(0, True)] * 2


def said(function: Any, *arguments: Any, **options: Any) -> str:
    """What the ValueError said."""
    try:
        function(*arguments, **options)
    except ValueError as e:
        return str(e)
    return "nothing"


def _refused(folder: str) -> dict[str, str]:
    model, rank, found = sharded(), dist.get_rank(), {}
    handle = cc.attach(model, reduce_scatter="topk ratio=0.2", all_gather="delta")
    train(model, 0, 2)
    dcp.save({f"comm-{rank}": handle.state_dict()}, checkpoint_id=folder)
    fresh = cc.attach(sharded(), reduce_scatter="topk ratio=0.2", all_gather="delta")
    template = {f"comm-{rank}": fresh.state_dict()}
    dcp.load(template, checkpoint_id=folder)
    found["template"] = said(fresh.load_state_dict, template[f"comm-{rank}"])
    found["untouched"] = str({int(e["tensors"]["tick"]) for e in fresh.state_dict().values()})
    found["handle itself"] = said(dcp.save, {"comm": handle}, checkpoint_id=f"{folder}-2")
    found["another rank"] = said(fresh.rank_states().load_state_dict, {"rank 7 of 9": ([],)})
    buckets = ddp.attach(wrapped(), "topk ratio=0.2")
    found["no bucket"] = said(buckets.load_state_dict, {})
    return found


def test_what_is_not_whole_is_refused(tmp_path: Path) -> None:
    for found in run_ranks(2, _refused, str(tmp_path / "old")):
        assert "without its tensors residual" in found["template"] or "replicas" in found["template"]
        assert "rank_states" in found["template"]
        assert found["untouched"] == "{0}"
        assert "rank_states" in found["handle itself"]
        assert "rank 7 of 9" in found["another rank"]
        assert "rank_states" in found["no bucket"]


def _registered() -> list[str]:
    from accelerate import Accelerator

    handle = cc.attach(sharded(), reduce_scatter="topk ratio=0.2")
    accelerator: Any = SimpleNamespace(_custom_objects=[])
    objects = (handle, handle.rank_states())
    return [said(Accelerator.register_for_checkpointing, accelerator, registered) for registered in objects]


def _in_fabric(folder: str) -> list[str]:
    from lightning.fabric.strategies.model_parallel import _save_checkpoint

    model = sharded()
    handle = cc.attach(model, reduce_scatter="topk ratio=0.2")
    options = {"full_state_dict": False, "rank": 0, "filter": None}
    states = ({"model": model, "comm": state} for state in (handle, handle.rank_states()))
    return [said(_save_checkpoint, path=Path(folder), state=state, **options) for state in states]


def test_lightning_which_saves_one_rank_for_all_is_refused_when_it_saves(tmp_path: Path) -> None:
    pytest.importorskip("lightning.fabric")
    for found in run_ranks(1, _in_fabric, str(tmp_path)):
        assert all("Lightning saves what is no module on one rank" in words for words in found)


def test_accelerate_which_saves_one_rank_for_all_is_refused_when_it_is_told_of_a_handle() -> None:
    pytest.importorskip("accelerate")
    for found in run_ranks(1, _registered):
        assert all("accelerate saves what is registered on one rank" in words for words in found)
        assert all("torch.save" in words for words in found)
