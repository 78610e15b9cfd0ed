"""Parameters without a gradient: stock's behaviour where the method allows it, nothing lost where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import comm_compress as cc
from tests.comm_compress.integrations.test_fsdp import Net, batch, full, loss_of, worst
from tests.distributed import run_ranks

SINCE_2_13 = pytest.mark.skipif(torch.__version__ < "2.13", reason="FSDP2 reduces zeros for them since torch 2.13")
METHODS: dict[str, Any] = {
    "identity": "identity",
    "feedback": "topk ratio=0.2",
    "powersgd": {"method": "powersgd", "rank": 1, "min_compression_rate": 0.1},
    "layers": {"method": "topk", "ratio": 0.2, "layers": {"head.*": "identity"}},
}


class Wide(Net):
    """With a parameter that nothing uses, amid the others."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks.insert(1, nn.Linear(5, 5))

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        unused = self.blocks.pop(1)
        try:
            return super().forward(x, branch)
        finally:
            self.blocks.insert(1, unused)


def sharded(shape: tuple[int, ...] = (2,), mixed: MixedPrecisionPolicy | None = None) -> Wide:
    """All in one unit."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    return fully_shard(Wide(), mesh=mesh, mp_policy=mixed or MixedPrecisionPolicy())  # type: ignore[return-value]


def train(model: nn.Module, first: int = 0, steps: int = 3, **options: Any) -> dict[str, Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
    for step in range(first, first + steps):
        loss_of(model, batch(dist.get_rank(), step), **options).backward()
        optimizer.step()
        optimizer.zero_grad()
    return full(model)


def grads(model: nn.Module) -> set[str]:
    loss_of(model, batch(dist.get_rank(), 9)).backward()
    return {name for name, p in model.named_parameters() if p.grad is not None}


def _never() -> dict[str, Any]:
    found: dict[str, Any] = {}
    start, stock = full(sharded()), train(model := sharded())
    with_grad = grads(model)
    for name, method in METHODS.items():
        model = sharded()
        cc.attach(model, reduce_scatter=method, all_gather="identity")
        got = train(model)
        found[f"{name} grads"] = grads(model) == with_grad
        found[f"{name} decays"] = [n for n in ("blocks.1.weight", "blocks.1.bias") if not got[n].equal(start[n])]
        if name == "identity":
            found["distance"] = worst(got, stock)
    model = sharded()
    cc.attach(model, reduce_scatter="identity")
    found["sometimes"] = worst(sometimes(model), sometimes(sharded()))
    return found


def sometimes(model: nn.Module) -> dict[str, Tensor]:
    for step in range(4):
        train(model, step, 1, branch=step % 2 == 1)
    return full(model)


def test_a_parameter_that_nothing_uses_is_left_alone() -> None:
    for found in run_ranks(2, _never):
        assert found.pop("distance") == 0, "identity is stock, bit for bit"
        assert found.pop("sometimes") == 0, "also where one is used only now and then"
        assert found == {k: True if k.endswith("grads") else [] for k in found}


def _waits() -> dict[str, Any]:
    """A residual waits for its parameter: it goes out in a step that does not use it, and nothing else changes it."""
    found: dict[str, Any] = {}
    for mixed in (None, MixedPrecisionPolicy(torch.bfloat16, torch.float32)):
        model = sharded(mixed=mixed)
        handle = cc.attach(model, reduce_scatter="topk ratio=0.2")
        before = 0.0
        for step in range(4):
            for micro in range(2):
                model.set_requires_gradient_sync(micro == 1)  # type: ignore[attr-defined]
                loss_of(model, batch(dist.get_rank(), 2 * step + micro), branch=step == 0).backward()
            segments = handle._by_key["reduce_scatter/root"].segments
            (place,) = [s for s in segments if s.name == "branch.weight"]
            tensors = handle.state_dict()["reduce_scatter/root"]["tensors"]
            left = float(tensors["residual"][:, place.start : place.stop].abs().sum())
            found.setdefault("left", []).append(left <= before or step == 0)
            before = left
            model.zero_grad()
        found.setdefault("names", []).append([s.name for s in segments if s.name.startswith("blocks.1")])
    return found


def test_a_residual_waits_for_its_parameter() -> None:
    for found in run_ranks(2, _waits):
        assert all(found["left"])
        assert found["names"] == [[], []]


def _later() -> dict[str, str]:
    """A parameter whose first gradient comes after others are remembered."""
    found = {}
    for name, method in METHODS.items():
        for zeros in (False, True):
            model = sharded()
            cc.attach(model, reduce_scatter=method)
            if zeros:
                model.set_reduce_scatter_unused_params(True)  # type: ignore[attr-defined]
            try:
                sometimes(model)
                found[f"{name} {zeros}"] = "works"
            except ValueError as e:
                found[f"{name} {zeros}"] = str(e)
    return found


@SINCE_2_13
def test_a_parameter_that_comes_late_is_refused_by_what_is_remembered_of_the_others() -> None:
    for found in run_ranks(2, _later):
        for name in METHODS:
            assert found[f"{name} True"] == "works", "the user may have FSDP2 count unused ones as zeros"
            if name == "identity":
                assert found["identity False"] == "works"
            else:
                assert "branch.weight" in found[f"{name} False"]
                assert "set_reduce_scatter_unused_params" in found[f"{name} False"]


def _resumed(folder: str) -> list[float]:
    """A state of some of the parameters fits a model of all of them; also between replicas."""
    distances = []
    for shape, between in (
        ((2,), {}),
        ((1, 2), {"all_reduce": "identity"}),
        ((2, 1), {"all_reduce": "topk ratio=0.3"}),
    ):
        methods = {"reduce_scatter": "topk ratio=0.3", **between}
        straight, fresh = sharded(shape), sharded(shape)
        handle = cc.attach(straight, **methods)
        train(straight, 0, 2)
        place = f"{folder}/{shape[0]}-{shape[-1]}"
        dcp.save({"model": straight.state_dict(), "comm": handle.rank_states()}, checkpoint_id=place)
        second = cc.attach(fresh, **methods)
        dcp.load({"model": fresh.state_dict(), "comm": second.rank_states()}, checkpoint_id=place)
        distances.append(worst(train(straight, 2, 2, branch=False), train(fresh, 2, 2, branch=False)))
    return distances


def test_what_is_remembered_of_some_parameters_comes_back(tmp_path: Path) -> None:
    assert run_ranks(2, _resumed, str(tmp_path)) == [[0, 0, 0]] * 2


def _virtual() -> list[float]:
    distances = []
    for method in ("identity", "topk ratio=0.2"):
        model = sharded()
        cc.attach(model, reduce_scatter=method)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
        plain = Wide()
        ranks = cc.VirtualRanks(plain, 2, [], reduce_scatter=method)
        together = torch.optim.AdamW(plain.parameters(), lr=0.05, weight_decay=0.5)
        for step in range(4):
            branch = step % 2 == 0
            loss_of(model, batch(dist.get_rank(), step), branch=branch).backward()
            optimizer.step()
            optimizer.zero_grad()
            with ranks.gathered():
                for rank in range(2):
                    loss_of(plain, batch(rank, step), branch=branch).backward()
                    ranks.collect(rank)
            ranks.reduce()
            together.step()
            together.zero_grad()
        distances.append(worst(full(model), {n: p.detach() for n, p in plain.named_parameters()}))
    return distances


def test_virtual_ranks_do_as_real_ones() -> None:
    for distances in run_ranks(2, _virtual):
        assert max(distances) < 1e-6
