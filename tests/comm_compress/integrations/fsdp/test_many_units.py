"""Hundreds of units: bits, calls and memory are as of few. A thousand: `fsdp-lab bench units`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from tests.distributed import run_ranks

UNITS, WIDTH = 250, 24


def _deep(units: int) -> nn.Sequential:
    torch.manual_seed(5)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(units)))
    for layer in model:
        nn.init.orthogonal_(layer.weight)  # else nothing is left of a gradient after so many products
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _trained(method: str | None, units: int, steps: int) -> tuple[list[Tensor], int, int]:
    """This rank's weights after some steps, and how many collectives and bytes of workspace these took."""
    model = _deep(units)
    handle = cc.attach(model, reduce_scatter=method, all_gather=method) if method else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        torch.manual_seed(10 * step + dist.get_rank())
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = [p.to_local().clone() for p in model.parameters()]  # type: ignore[attr-defined]
    if handle is None:
        return weights, 0, 0
    return weights, handle.ledger.totals().calls, handle.workspace_bytes


def _walks(units: int) -> int:
    """How many times `attach` goes through the model's parameters."""
    model, walks, named = _deep(units), 0, nn.Module.named_parameters

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal walks
        walks += args[0] is model
        return named(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nn.Module, "named_parameters", counted)
        cc.attach(model, reduce_scatter="int8", all_gather="int8")
    return walks


def test_attach_goes_through_the_parameters_as_often_for_many_units_as_for_few() -> None:
    for few, many in zip(run_ranks(2, _walks, 3), run_ranks(2, _walks, 30), strict=True):
        assert 0 < few == many


def _compared() -> tuple[bool, list[int], list[int]]:
    stock, _, _ = _trained(None, UNITS, 1)
    ours, calls, _ = _trained("identity", UNITS, 1)
    _, _, of_few = _trained("int8", 10, 2)
    many, calls_of_two, of_many = _trained("int8", UNITS, 2)
    assert all(weight.isfinite().all() for weight in many)
    return all(map(torch.equal, stock, ours)), [calls, calls_of_two], [of_few, of_many]


def test_hundreds_of_units_train_like_stock_in_the_memory_of_ten() -> None:
    for equal, (of_a_step, of_two), (of_few, of_many) in run_ranks(2, _compared, timeout=300):
        assert equal
        # a unit is gathered for forward, and again for backward where it is not used there at once, and reduced
        assert of_a_step in range(2 * UNITS, 3 * UNITS + 1)
        assert of_two == 2 * of_a_step
        assert 0 < of_many <= of_few
