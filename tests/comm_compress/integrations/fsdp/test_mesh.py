"""FSDP2 x tensor parallelism on 2 x 2 real ranks: what tensor parallelism replicates stays replicated, bit for bit.

The ranks are started once for all of it: what a rank does for the first time takes it a second.
"""

from __future__ import annotations

from typing import NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import comm_compress as cc
from comm_compress.integrations.fsdp import hooks as fsdp_hooks
from tests.comm_compress.table import build
from tests.comm_compress.table_rows import Rows
from tests.distributed import run_ranks

WIDTH, INNER, WORDS, LENGTH = 24, 40, 11, 6


class Block(nn.Module):
    """Pre-norm attention and MLP: column- and row-parallel matrices beside norms and biases that are replicated."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (part(h).unflatten(-1, (-1, 6)).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Parallel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block()])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        if isinstance(x, DTensor):  # sequence parallel: each rank has its own positions until here
            x = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Replicate()])
        return self.head(x)


MATRICES = {
    **dict.fromkeys("qkv", ColwiseParallel()),
    "o": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}
SEQUENCE = {  # norms see a part of the positions on each TP rank: their gradients are parts of a sum
    **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel(input_layouts=Shard(1))),
    **dict.fromkeys(("o", "down"), RowwiseParallel(output_layouts=Shard(1), use_local_output=False)),
    **dict.fromkeys(("norm1", "norm2"), SequenceParallel()),
}


def parallel(mesh: DeviceMesh, sequence: bool = False, mixed: MixedPrecisionPolicy | None = None) -> Parallel:
    """FSDP2 over what of ``mesh`` is not "tp"; a unit for the block and one for the rest."""
    model = Parallel()
    if sequence:
        plan = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False)}
        parallelize_module(model, mesh["tp"], plan)
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], SEQUENCE if sequence else MATRICES)
    names = tuple(name for name in mesh.mesh_dim_names or () if name != "tp")
    options = {"mp_policy": mixed} if mixed else {}
    for block in model.blocks:
        fully_shard(block, mesh=mesh[names], **options)
    fully_shard(model, mesh=mesh[names], **options)
    return model


def train(model: nn.Module, mesh: DeviceMesh, steps: int) -> None:
    """On batches that differ between data-parallel ranks and agree on the ranks of one TP group."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    data_rank = dist.get_rank() // mesh["tp"].size()
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + data_rank)
        words = torch.randint(WORDS, (2, LENGTH), generator=generator)
        F.cross_entropy(model(words).flatten(0, 1).float(), words.roll(-1, 1).flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def replicas_drift(model: nn.Module, mesh: DeviceMesh) -> tuple[float, int]:
    """The largest difference between TP ranks of any parameter that all of them hold; how many such there are."""
    group, worst, count = mesh["tp"].get_group(), 0.0, 0
    for p in model.parameters():
        assert isinstance(p, DTensor)
        here = [q for name, q in zip(p.device_mesh.mesh_dim_names or (), p.placements, strict=True) if name == "tp"]
        if all(placement.is_replicate() for placement in here):
            mine = p.to_local().detach().contiguous()
            others = [torch.empty_like(mine) for _ in range(group.size())]
            dist.all_gather(others, mine, group=group)
            worst = max([worst, *(float((other - mine).abs().max()) for other in others if mine.numel())])
            count += 1
    return worst, count


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.to_local().detach().clone() for name, p in model.named_parameters()}  # type: ignore[attr-defined]


def meshes() -> dict[str, DeviceMesh]:
    return {
        "dp x tp": init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")),
        "replicas x shards x tp": init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicate", "shard", "tp")),
    }


# ---- replicas stay replicas -----------------------------------------------------------------------------------
# (`conformance.replicas_stay_replicas` says the same of every method of the table, over virtual ranks)

GRADIENTS: Rows = [
    ("identity", {}),
    ("topk", {"ratio": 0.05}),
    ("int4", {"hadamard": True, "error_feedback": True, "block_size": 64}),
    ("onebit", {}),
    ("powersgd", {"rank": 1, "min_compression_rate": 1.0}),
    ("qsgd", {}),  # random
    ("int8", {"scale": "global"}),  # two rounds
    ("topk", {"ratio": 0.05, "warmup_steps": 2, "min_numel": 64}),
]
PARAMETERS: Rows = [
    ("delta", {"values": {"method": "int4", "hadamard": True, "block_size": 64}}),
    ("delta", {"mode": "grid"}),
    ("int8", {"block_size": 64}),
    ("bf16", {}),
]


STEPS = 3


def _drifts(kind: str, gradients: Rows, parameters: Rows) -> list[tuple[float, int]]:
    mesh, found = meshes()[kind], []
    sides = [(row, None) for row in gradients] + [(("topk", {"ratio": 0.05}), row) for row in parameters]
    for number, (gradient, parameter) in enumerate(sides):
        model = parallel(mesh, sequence=bool(number % 2))
        methods = {"reduce_scatter": build(*gradient), "all_gather": build(*parameter) if parameter else None}
        if kind != "dp x tp":
            methods |= {"all_reduce": build(*gradient), "all_reduce_gather": build("int4", {"hadamard": True})}
        handle = cc.attach(model, **methods)
        train(model, mesh, STEPS)
        found.append(replicas_drift(model, mesh))
        assert handle.ledger.totals().sent_bytes > 0
    return found


def _unsplit() -> list[tuple[float, int]]:
    with mock.patch.object(fsdp_hooks, "apart", lambda method, holders: method):
        return _drifts("dp x tp", GRADIENTS[1:4], PARAMETERS[:1])


class Seen(NamedTuple):
    """What one rank has found: drifts and how many parameters were looked at; distances from stock."""

    drifts: list[tuple[float, int]]
    drifts_of_replicas: list[tuple[float, int]]
    drifts_unsplit: list[tuple[float, int]]
    from_stock: list[float]


def _all() -> Seen:
    return Seen(
        _drifts("dp x tp", GRADIENTS, PARAMETERS),
        _drifts("replicas x shards x tp", GRADIENTS[:4], []),
        _unsplit(),
        _identity(),
    )


@pytest.fixture(scope="module")
def ranks() -> list[Seen]:
    return run_ranks(4, _all, timeout=280)


def test_replicated_parameters_are_the_same_on_all_tp_ranks(ranks: list[Seen]) -> None:
    names = [*GRADIENTS, *PARAMETERS]
    for seen in ranks:
        for (drift, count), (name, config) in zip(seen.drifts, names, strict=True):
            assert count >= 6 + 2, "norms' weights and biases, biases of o and down, the head's"
            assert drift == 0, (name, config)


def test_also_between_replicas_of_the_shards(ranks: list[Seen]) -> None:
    for seen in ranks:
        assert [drift for drift, _ in seen.drifts_of_replicas] == [0] * 4


def test_the_drift_is_seen_where_a_units_row_is_coded_as_a_whole(ranks: list[Seen]) -> None:
    """What these tests would say of the code before parts: so they can fail."""
    for seen in ranks:
        assert len(seen.drifts_unsplit) == 4
        assert all(drift > 1e-4 for drift, _ in seen.drifts_unsplit), seen.drifts_unsplit


# ---- identity is stock ----------------------------------------------------------------------------------------


def _identity() -> list[float]:
    mesh, distances = meshes()["dp x tp"], []
    mixed = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for sequence, policy in ((False, None), (True, None), (False, mixed)):
        stock, model = parallel(mesh, sequence, policy), parallel(mesh, sequence, policy)
        cc.attach(model, reduce_scatter=cc.make("identity"), all_gather=cc.make("identity"))
        train(stock, mesh, 4)
        train(model, mesh, 4)
        a, b = weights(stock), weights(model)
        distances += [float((a[name] - b[name]).abs().max()) for name in a if a[name].numel()]
    return distances


def test_identity_trains_like_stock_on_this_mesh(ranks: list[Seen]) -> None:
    for seen in ranks:
        assert max(seen.from_stock) == 0, "two data-parallel ranks: bit for bit"
