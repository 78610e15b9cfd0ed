"""What every forked rank would import by itself otherwise, at more than a second each: imported by the server, once."""

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch._dynamo  # (FSDP2's and the optimizers' first call imports it)
import torch.distributed.fsdp

import comm_compress
from tests.comm_compress.table import TABLE, build

for name in comm_compress.__all__:  # its parts are imported when they are asked for
    getattr(comm_compress, name)

for name, config in TABLE:  # a method's kernels are imported when it is built
    build(name, config)


def _train_once() -> None:
    """A rank's first steps of FSDP2 take it 0.1 s more than the next ones: made here, by a process group that sends
    nothing and has no threads, they are made for all ranks."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a team of OpenMP's threads would not be there after a fork
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.zeros(2, 3, dtype=torch.int64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
    torch.set_num_threads(threads)


_train_once()
