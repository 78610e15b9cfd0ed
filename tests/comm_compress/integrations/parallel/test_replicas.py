"""Gradients of replicated parameters are summed: exactly by torch's own collective and identity, alike on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import comm_compress as cc
from tests.distributed import run_ranks


class Net(nn.Module):
    """A matrix, an odd-sized bias, a scalar, and a parameter that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(33, 64)), nn.Parameter(torch.zeros(7))
        self.scale, self.unused = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(5))


def gradients(rank: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    shapes = {"weight": (33, 64), "bias": (7,), "scale": ()}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def summed(method: str | None) -> tuple[dict[str, list[float]], int, int]:
    """This rank's gradients afterwards, the bytes counted, and the bytes that its states hold."""
    model = Net()
    units = {"matrix": [("weight", model.weight)], "others": [*model.named_parameters()][1:]}
    replicas = cc.parallel.ReplicatedGradients(units, dist.group.WORLD, method)
    for name, gradient in gradients(dist.get_rank()).items():
        model.get_parameter(name).grad = gradient
    replicas.reduce()
    assert model.unused.grad is None
    found = {name: p.grad.flatten().tolist() for name, p in model.named_parameters() if p.grad is not None}
    return found, replicas.ledger.totals("all_reduce").sent_bytes, replicas.state_bytes


def everything() -> dict[str, Any]:
    return {str(method): summed(method) for method in (None, "identity", "int8", "topk ratio=0.1")}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_ends_with_the_sum(world: int) -> None:
    by_rank = run_ranks(world, everything)
    inputs = [gradients(rank) for rank in range(world)]
    for name in inputs[0]:
        total = torch.stack([each[name] for each in inputs]).sum(0).flatten()
        for method in by_rank[0]:
            each = [torch.tensor(seen[method][0][name]) for seen in by_rank]
            assert all(torch.equal(other, each[0]) for other in each), f"{method}: {name} differs between ranks"
            largest = sum(float(each_input[name].abs().max()) for each_input in inputs)
            loss = {"None": 1e-6, "identity": 1e-6, "int8": 0.02}.get(method, 1.0)
            assert (each[0] - total).abs().max() <= loss * largest, f"{method}: {name}"
    stock, identity = by_rank[0]["None"], by_rank[0]["identity"]
    if world <= 2:
        assert stock[0] == identity[0], "identity is torch's own all-reduce, bit for bit"
    assert stock[1] == 0, "nobody counts torch's own"
    elements = 33 * 64 + 7 + 1
    assert identity[1] >= 2 * 4 * elements * (world - 1) // world
    assert world == 1 or by_rank[0]["int8"][1] < 0.7 * identity[1], "the second half is exact unless told otherwise"
    assert world == 1 or by_rank[0]["topk ratio=0.1"][2] >= 4 * elements, "what top-k leaves out is kept"


def refused() -> str:
    with pytest.raises(ValueError, match="delta") as error:
        cc.parallel.ReplicatedGradients({}, dist.group.WORLD, "delta")
    return str(error.value)


def test_a_method_for_parameters_is_refused() -> None:
    assert "for parameters (all_gather) only" in run_ranks(1, refused)[0]
