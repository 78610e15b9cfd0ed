"""A model that was divided by hand: what several shard groups hold whole stays equal on all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from tests.distributed import run_ranks

METHODS = ("int8", "int4 hadamard", "topk ratio=0.1", "fp8")


class TwoParts(nn.Module):
    """``piece`` is another one on each rank of tensor parallelism, ``whole`` is the same on all of them."""

    def __init__(self, tp_rank: int) -> None:
        super().__init__()
        self.piece = nn.Parameter(torch.randn(7, 11, generator=torch.Generator().manual_seed(tp_rank)))
        self.whole = nn.Parameter(torch.randn(5, 3, generator=torch.Generator().manual_seed(9)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.piece * x).square().sum() + (self.whole * x).square().sum()


def wholes(method: str, says: bool) -> tuple[int, bytes, bytes]:
    """The data-parallel rank, and what it has of the gradient and the gathered value of ``whole``."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_coordinate() or (0, 0)
    model = TwoParts(tp)
    fully_shard(model, mesh=mesh["dp"])
    pieces = {"piece": f"tp={tp}"} if says else None
    gather = None if "topk" in method else f"{method} error_feedback=false"
    cc.attach(model, reduce_scatter=method, all_gather=gather, pieces=pieces)
    seen: list[bytes] = []
    model.register_forward_hook(
        lambda module, args, output: seen.append(module.whole.detach().clone().numpy().tobytes())
    )
    for step in range(3):
        model(torch.tensor(1.0 + dp + step)).backward()
    gradient = model.whole.grad.to_local()  # type: ignore[union-attr]
    return dp, gradient.clone().numpy().tobytes(), seen[-1]


@pytest.mark.parametrize("method", METHODS)
def test_what_is_whole_on_several_groups_stays_equal(method: str) -> None:
    ranks = run_ranks(4, wholes, method, True)
    for dp in range(2):
        assert len({rank[1:] for rank in ranks if rank[0] == dp}) == 1


def test_without_saying_which_parameters_are_pieces_it_does_not() -> None:
    ranks = run_ranks(4, wholes, "int8", False)
    assert any(len({rank[1:] for rank in ranks if rank[0] == dp}) > 1 for dp in range(2))
