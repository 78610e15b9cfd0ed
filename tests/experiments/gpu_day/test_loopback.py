"""A process group whose peer is this rank's twin, under torch's own calls, FSDP2 and our transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from experiments.gpu_day import loopback


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    with loopback.joined():
        yield dist.group.WORLD


def test_collectives_are_those_of_twins(group: dist.ProcessGroup) -> None:
    assert (dist.get_rank(), dist.get_world_size(), group.size()) == (0, 2, 2)
    x = torch.arange(4.0)
    out = torch.empty(2, 2)
    dist.all_to_all_single(out, x.view(2, 2))
    assert out.flatten().tolist() == [0, 1, 2, 3], "what was sent comes back"
    gathered = torch.empty(8)
    dist.all_gather_into_tensor(gathered, x)
    assert gathered.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    mine = torch.empty(2)
    dist.reduce_scatter_tensor(mine, x)
    assert mine.tolist() == [0 + 2, 1 + 3], "what was sent comes back here, too"
    dist.reduce_scatter_tensor(mine, x, op=dist.ReduceOp.AVG)
    assert mine.tolist() == [1, 2]
    total, most = x.clone(), x.clone()
    dist.all_reduce(total)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert (total.tolist(), most.tolist()) == ([0, 2, 4, 6], [0, 1, 2, 3])
    long, short = torch.zeros(3), torch.zeros(1)
    dist.all_to_all([long, short], [x[:3], x[3:]])
    assert (long.tolist(), short.tolist()) == ([0, 1, 2], [3])


def test_messages_meet_who_waits_for_them(group: dist.ProcessGroup) -> None:
    first, second = torch.zeros(2), torch.zeros(2)
    for waiting in (first, second):
        dist.irecv(waiting, src=1)
    dist.isend(torch.ones(2), dst=1)
    dist.isend(2 * torch.ones(2), dst=1)
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])
    with pytest.raises(RuntimeError, match="a message that nobody waits for"):
        dist.isend(torch.ones(2), dst=1)


ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
@pytest.mark.parametrize("methods", [("identity", "identity"), ("int8", "delta"), ("topk ratio=0.2", None)])
def test_fsdp2_trains_on_it_and_counts_what_two_ranks_would_send(
    group: dist.ProcessGroup, methods: tuple[str, str | None], device: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(device)
    mesh = init_device_mesh(device, (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    handle = cc.attach(model, reduce_scatter=methods[0], all_gather=methods[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        loss = model(torch.ones(4, 8, device=device)).square().mean()
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        assert float(norm.full_tensor()) > 0  # a functional collective of DTensor
        optimizer.step()
        optimizer.zero_grad()
    assert torch.isfinite(loss)
    totals = handle.ledger.totals("reduce_scatter")
    assert totals.elements == 2 * 2 * (8 * 8 + 8) // 2
    if methods[0] == "identity":
        assert totals.sent_bytes == 4 * totals.elements
