"""Muon on real ranks under FSDP2: the weights, states and bytes of virtual ones, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import comm_compress as cc
from tests.comm_compress.integrations.optim.training import SETTINGS, UNITS, Virtual, gradients, weights
from tests.distributed import run_ranks

STEPS = 3
HOW: tuple[tuple[str | None, Any], ...] = (
    (None, "all_gather"),
    (None, "owners"),
    ("int8", "owners"),
    ("delta", "auto"),
)


def _model() -> nn.Module:
    """Matrices in two modules, each a unit of FSDP2."""
    model, named = nn.Module(), weights()
    for unit, names in UNITS.items():
        model.add_module(unit, nn.Module())
        for name in names:
            model.get_submodule(unit).register_parameter(name.partition(".")[2], named[name])
        fully_shard(model.get_submodule(unit))
    fully_shard(model)
    return model


def _trained(method: str | None, how: Any) -> dict[str, Any]:
    model = _model()
    handle = cc.optim.attach(cc.optim.matrices(model, UNITS), method, exchange=how, seed=5)
    optimizer = cc.optim.Muon(handle, [], **SETTINGS)
    after: dict[str, Any] = {}
    with cc.audit(handle) as audit:
        for step in range(STEPS):
            for name, gradient in gradients(step).items():
                p = model.get_parameter(name)
                assert isinstance(p, DTensor)
                whole = distribute_tensor(gradient, p.device_mesh, p.placements, src_data_rank=None)
                p.grad = whole
            optimizer.step()
    after["sent"] = handle.ledger.totals("optimizer").sent_bytes
    after["audited"] = audit.sent_bytes
    after["weights"] = {n: p.full_tensor().tolist() for n, p in model.named_parameters() if isinstance(p, DTensor)}
    after["momentum"] = sum(s["momentum_buffer"].to_local().numel() for s in optimizer.state.values())
    after["states"] = {k: sorted(v["tensors"]) for k, v in handle.state_dicts()[0].items()}
    return after


def _all() -> list[dict[str, Any]]:
    trained = [_trained(*how) for how in HOW]
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()))
    refused = {}
    for how, placements in {"columns": [Replicate(), Shard(1)], "replicas": [Replicate(), Replicate()]}.items():
        p = nn.Parameter(distribute_tensor(torch.ones(4, 6), mesh, placements))
        try:
            refused[how] = str(cc.optim.attach({"unit": {"p": p}}).sends)
        except ValueError as error:
            refused[how] = str(error)
    return [*trained, refused]


@pytest.fixture(scope="module")
def ranks() -> list[list[dict[str, Any]]]:
    return run_ranks(3, _all)


@pytest.mark.parametrize("number", range(len(HOW)))
def test_real_ranks_are_virtual_ones(ranks: list[list[dict[str, Any]]], number: int) -> None:
    virtual = Virtual(3, HOW[number][0], how=HOW[number][1])
    for step in range(STEPS):
        virtual.step(step)
    for rank, answers in enumerate(ranks):
        real = answers[number]
        for name, p in virtual.whole.items():
            assert torch.equal(torch.tensor(real["weights"][name]), p), (name, rank)
        assert real["sent"] == virtual.handle.ledgers[rank].totals("optimizer").sent_bytes > 0
        assert real["audited"] == real["sent"], "nothing else goes over the wire, and nothing less"
        assert real["states"] == {k: sorted(v["tensors"]) for k, v in virtual.handle.state_dicts()[rank].items()}
    elements = sum(p.numel() for p in virtual.whole.values())
    assert sum(answers[number]["momentum"] for answers in ranks) == elements, "no rank keeps what is another's"


def test_only_rows_can_be_gathered(ranks: list[list[dict[str, Any]]]) -> None:
    for answers in ranks:
        assert "only FSDP2's shards of dim 0 can be gathered" in answers[-1]["columns"]
        assert answers[-1]["replicas"] == "False"
