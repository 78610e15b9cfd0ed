"""One element of one row on one rank that is not finite: every rank must see it in the same collective.

The hooks mark their input (`core.nonfinite`), so the tests go through the hooks: an input that is not finite
everywhere, as a whole backward of NaNs makes it, would be seen by every rank without any mark.
"""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import comm_compress as cc
from comm_compress.core import nonfinite
from comm_compress.integrations import ddp
from tests.comm_compress.integrations.test_fsdp import IN_ROUNDS_OR_PARTS, ONE_OF_EACH, SEEING_MORE, SOME
from tests.comm_compress.table import TABLE, build
from tests.comm_compress.table_rows import Rows
from tests.distributed import run_ranks

# The hook's mark is a NaN in a row: that codecs pass NaNs on, in any setting, is one of the conformance laws.
GATHER_TABLE: Rows = [
    (name, config)
    for name, config in TABLE
    if build(name, config).traits.for_parameters
    and (not config or name == "delta" or IN_ROUNDS_OR_PARTS & config.keys())
]
HALVES = 2  # parts of a table: each has its ranks, which must answer in two minutes also on a busy machine
SICK = 1  # the rank whose gradient has the element


class Net(nn.Module):
    """Two units. On request the last element of the head's bias, and nothing else, has a gradient of ``sick``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(6, 8)  # a name that the table has a pattern for
        self.head = nn.Linear(8, 9)
        self.sick: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.embed(x)))
        return y if self.sick is None else y + sickens(self.head.bias[-1:], self.sick)


class _Sickens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float) -> Tensor:
        ctx.value = value
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return torch.full((1,), ctx.value), None


def sickens(x: Tensor, value: float) -> Tensor:
    """Zeros for one element ``x`` ``[1]``, whose gradient is ``value`` whatever the loss is."""
    return _Sickens.apply(x, value)  # type: ignore[no-any-return, no-untyped-call]


def sharded() -> Net:
    model, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.embed, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # type: ignore[no-any-return]


def backward(model: nn.Module, inner: Net, rank: int, sick: float | None) -> None:
    inner.sick = sick if rank == SICK else None
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    model(x).square().mean().backward()


def _elements_alone() -> list[int]:
    """What the gradients of `Net` on one rank hold that is not finite."""
    model = Net()
    backward(model, model, SICK, math.nan)
    return [int((~torch.isfinite(p.grad)).sum()) for p in model.parameters() if p.grad is not None]


def test_a_single_element_is_not_finite() -> None:
    """Or the tests below would show nothing."""
    assert _elements_alone() == [0, 0, 0, 1]


def test_nothing_at_all_is_finite() -> None:
    finite = nonfinite.mark(torch.empty(3, 0))
    assert (finite.dtype, bool(finite)) == (torch.bool, True)


def test_the_mark_is_in_front_of_every_row_and_nowhere_else() -> None:
    rows = torch.arange(6.0).view(2, 3)
    healthy = rows.clone()
    assert bool(nonfinite.mark(healthy))
    assert torch.equal(healthy, rows)
    sick = rows.clone()
    sick[1, 2] = math.inf
    assert not bool(nonfinite.mark(sick))
    assert torch.isnan(sick[:, 0]).all()
    assert sick[:, 1:].tolist() == [[1, 2], [4, math.inf]]


# ---- FSDP2 ----------------------------------------------------------------------------------------------------


def _sees(model: Net) -> dict[str, bool]:
    """By unit: is anything in this rank's shard of the gradient not finite?"""
    found = {"embed": False, "head": False}
    for name, p in model.named_parameters():
        assert p.grad is not None
        found[name.split(".")[0]] |= not bool(torch.isfinite(p.grad.to_local()).all())  # type: ignore[attr-defined]
    return found


def _after_a_sick_step(table: Rows, sick: float) -> list[dict[str, bool]]:
    seen, model = [], sharded()
    for name, config in table:
        model.zero_grad()
        handle = cc.attach(model, reduce_scatter=build(name, config))
        backward(model, model, dist.get_rank(), None)
        model.zero_grad()
        backward(model, model, dist.get_rank(), sick)
        seen.append(_sees(model))
        handle.detach()
    return seen


@pytest.mark.parametrize(
    ("sick", "table"),
    [*((math.nan, (ONE_OF_EACH + SEEING_MORE)[part::HALVES]) for part in range(HALVES)), (-math.inf, SOME)],
    ids=[*(f"nan{part}" for part in range(HALVES)), "inf"],
)
def test_one_element_of_one_rank_reaches_every_rank_whatever_the_method(sick: float, table: Rows) -> None:
    for rank, seen in enumerate(run_ranks(3, _after_a_sick_step, table, sick, timeout=280)):
        for (name, config), units in zip(table, seen, strict=True):
            assert units == {"embed": False, "head": True}, f"rank {rank}, {name} {config}"


def _without_marks() -> list[dict[str, bool]]:
    with patch.object(nonfinite, "mark", nonfinite.all_finite):
        return _after_a_sick_step([("identity", {})], math.nan)


def test_without_marks_only_the_elements_owner_would_see_it() -> None:
    """The test above can fail: this is what it would see."""
    assert [seen[0]["head"] for seen in run_ranks(3, _without_marks)] == [False, False, True]


# ---- the hop between replicas (HSDP), and DDP -------------------------------------------------------------------


def _replicas() -> list[dict[str, bool]]:
    """A mesh of two replicas of two shards: the element is in one of four gradients."""
    seen = []
    for method in ("identity", "int8", "topk"):
        model = Net()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model.embed, mesh=mesh)
        fully_shard(model, mesh=mesh)
        cc.attach(model, reduce_scatter=build(method, {}), all_reduce=build(method, {}))
        backward(model, model, dist.get_rank(), math.nan)
        seen.append(_sees(model))
    return seen


def test_one_element_reaches_the_other_replicas_too() -> None:
    for seen in run_ranks(4, _replicas):
        assert seen == [{"embed": False, "head": True}] * 3


def _buckets(table: Rows) -> list[bool]:
    seen = []
    for name, config in table:
        inner = Net()
        model = DistributedDataParallel(inner)
        gather = build(name, config)
        ddp.attach(model, build("int8", {}), None if gather.name == "identity" else gather)
        for sick in (None, None, math.nan):
            model.zero_grad()
            backward(model, inner, dist.get_rank(), sick)
        seen.append(not all(bool(torch.isfinite(p.grad).all()) for p in inner.parameters() if p.grad is not None))
    return seen


@pytest.mark.parametrize("table", [GATHER_TABLE[part::HALVES] for part in range(HALVES)], ids=range(HALVES))
def test_one_element_reaches_every_rank_of_ddp_whatever_brings_the_sums_back(table: Rows) -> None:
    for rank, seen in enumerate(run_ranks(3, _buckets, table)):
        blind = [row for row, sees in zip(table, seen, strict=True) if not sees]
        assert not blind, f"rank {rank}"


# ---- virtual ranks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["identity", "int8", "topk"])
def test_one_element_reaches_every_virtual_rank(method: str) -> None:
    world, model = 3, Net()
    ranks = cc.VirtualRanks(model, world, ["embed"], reduce_scatter=build(method, {}))
    for rank in range(world):
        backward(model, model, rank, math.nan)
        ranks.collect(rank)
    ranks.reduce()
    weight = model.head.weight.grad
    assert weight is not None
    assert not any(bool(torch.isfinite(part).all()) for part in weight.chunk(world)), "each rank's part of the unit"
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.embed.parameters() if p.grad is not None)
