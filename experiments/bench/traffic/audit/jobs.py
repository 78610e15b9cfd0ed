"""What is audited: training steps of every kind, and the collectives one by one; each as a function that runs once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import comm_compress as cc
from comm_compress.drive._compat import all_gather_single, reduce_scatter_single

WIDTH, ROWS, BLOCKS = 256, 2048, 2
ELEMENTS = 3 << 18  # of a collective's input, 3 MiB in float32; whole for two, three and four ranks


class Job(NamedTuple):
    """``once`` runs a step or a collective; ``handle``: whose ledger counts along."""

    once: Callable[[], object]
    handle: cc.Handle | None = None


class Feed(nn.Module):
    """A feed-forward layer: two matrices around a nonlinearity."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """``[rows, WIDTH]`` to the same shape."""
        return x + self.down(nn.functional.gelu(self.up(x)))  # type: ignore[no-any-return]


def model() -> nn.Sequential:
    """A million parameters, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(Feed() for _ in range(BLOCKS)))


def _sharded(mesh: DeviceMesh | None = None) -> nn.Sequential:
    blocks = model()
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(blocks, mesh=mesh)
    return blocks


def _steps(trained: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()) -> Callable[[], object]:
    """A training step; AdamW where no optimizers are given."""
    chosen = list(optimizers) or [torch.optim.AdamW(trained.parameters(), lr=1e-3)]
    inputs = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))

    def step() -> None:
        loss = trained(inputs).square().mean()
        loss.backward()
        for optimizer in chosen:
            optimizer.step()
            optimizer.zero_grad()

    return step


def fsdp2() -> Job:
    """Train under stock FSDP2, with nothing attached."""
    return Job(_steps(_sharded()))


def compressed() -> Job:
    """A job under FSDP2 whose gradients and parameters are both compressed."""
    blocks = _sharded()
    handle = cc.attach(blocks, reduce_scatter="topk ratio=0.1", all_gather="int8")
    return Job(_steps(blocks), handle)


def gradients_only() -> Job:
    """FSDP2 with gradients compressed, parameters not."""
    blocks = _sharded()
    handle = cc.attach(blocks, reduce_scatter="int8")
    return Job(_steps(blocks), handle)


def hsdp() -> Job:
    """FSDP2 on a mesh of two replicas."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicas", "shards"))
    return Job(_steps(_sharded(mesh)))


def ddp() -> Job:
    """DDP, whose buckets go by its reducer in C++."""
    return Job(_steps(DistributedDataParallel(model())))


def tensor_parallel() -> Job:
    """Tensor parallel blocks: activations are summed, forward and backward."""
    blocks = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for block in blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    inputs = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))

    def step() -> None:
        loss = blocks(inputs.clone().requires_grad_()).square().mean()
        loss.backward()

    return Job(step)


def pipeline() -> Job:
    """A pipeline of one block a rank, four microbatches."""
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(model()[rank], rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    inputs = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    if rank == 0:
        return Job(lambda: schedule.step(inputs))
    return Job(lambda: schedule.step(target=inputs))


def muon() -> Job:
    """FSDP2 with Muon, which gathers whole matrices to orthogonalise them."""
    blocks = _sharded()
    matrices = [p for p in blocks.parameters() if p.ndim == 2]
    rest = [p for p in blocks.parameters() if p.ndim != 2]
    return Job(_steps(blocks, [torch.optim.Muon(matrices, lr=1e-3), torch.optim.AdamW(rest, lr=1e-3)]))


def _whole() -> Tensor:
    return torch.ones(ELEMENTS)


def _parts() -> list[Tensor]:
    return list(_whole().chunk(dist.get_world_size()))


def _pairs() -> None:
    rank, world, message, received = dist.get_rank(), dist.get_world_size(), _whole(), _whole()
    operations = [dist.P2POp(dist.isend, message, (rank + 1) % world)]
    operations.append(dist.P2POp(dist.irecv, received, (rank - 1) % world))
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _root() -> bool:
    return bool(dist.get_rank() == 0)


BUILDERS: dict[str, Callable[[], Job]] = {
    "FSDP2": fsdp2,
    "FSDP2, int8 gradients": gradients_only,
    "FSDP2, topk and int8": compressed,
    "DDP": ddp,
    "tensor parallel": tensor_parallel,
    "pipeline": pipeline,
    "FSDP2 and Muon": muon,
    "HSDP": hsdp,
    "all_gather_single": lambda: Job(lambda: all_gather_single(torch.empty(ELEMENTS), _parts()[0].clone())),
    "all_gather": lambda: Job(lambda: dist.all_gather(_parts(), _parts()[0])),
    "reduce_scatter_single": lambda: Job(lambda: reduce_scatter_single(_parts()[0].clone(), _whole())),
    "reduce_scatter": lambda: Job(lambda: dist.reduce_scatter(_parts()[0].clone(), [p.clone() for p in _parts()])),
    "all_reduce": lambda: Job(lambda: dist.all_reduce(_whole())),
    "all_to_all_single": lambda: Job(lambda: dist.all_to_all_single(torch.empty(ELEMENTS), _whole())),
    "broadcast": lambda: Job(lambda: dist.broadcast(_whole(), 0)),
    "reduce": lambda: Job(lambda: dist.reduce(_whole(), 0)),
    "gather": lambda: Job(lambda: dist.gather(_parts()[0], [p.clone() for p in _parts()] if _root() else None)),
    "scatter": lambda: Job(lambda: dist.scatter(_parts()[0].clone(), _parts() if _root() else None)),
    "batch_isend_irecv": lambda: Job(_pairs),
}
"""By its name in `runs`: what makes each job, on every rank."""
