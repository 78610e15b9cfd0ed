"""The byte audit: what it sees, whom it names, and what it says beside the ledgers."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import comm_compress as cc
from comm_compress.drive.wire_bytes import Moved, gloo_bytes, ring_bytes
from comm_compress.integrations.audit.lines import Line
from tests.distributed import run_ranks

SIZE = 1200


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    ("op", "times"),  # what all ranks send together, in inputs of one rank, when there are W of them
    [
        ("all_gather", lambda w: w * (w - 1)),
        ("all_reduce", lambda w: 2 * (w - 1)),
        ("reduce_scatter", lambda w: 2 * (w - 1)),
        ("broadcast", lambda w: w - 1),
        ("reduce", lambda w: (w - 1) + (w - 1) / w),
        ("gather", lambda w: w - 1),
        ("send", lambda w: w),
        ("barrier", lambda w: 0),
    ],
)
def test_what_ranks_send_on_gloo_adds_up(world: int, op: str, times: Any) -> None:
    for root in {0, world - 1}:
        sent = [gloo_bytes(Moved(op, SIZE, world, rank, root=root)) for rank in range(world)]
        assert sum(sent) == pytest.approx(times(world) * SIZE, abs=world)


def test_a_ring_sends_half_of_what_gloos_reduce_scatter_does() -> None:
    moved = Moved("reduce_scatter", SIZE, 4, 1)
    assert gloo_bytes(moved) == 2 * ring_bytes(moved) == 2 * SIZE * 3 // 4


def test_one_rank_alone_sends_nothing() -> None:
    assert gloo_bytes(Moved("all_reduce", SIZE, 1, 0)) == ring_bytes(Moved("send", SIZE, 1, 0)) == 0


def _summary(line: Line) -> tuple[str, str, int, int, int, int]:
    return line.op, line.dtype, line.calls, line.payload_bytes, line.sent_bytes, line.ring_bytes


def _single_collectives() -> dict[str, Any]:
    rank = dist.get_rank()
    with cc.audit() as audit:
        for _ in range(2):
            dist.all_reduce(torch.ones(100))
        dist.all_gather([torch.empty(10, dtype=torch.bfloat16)] * 2, torch.ones(10, dtype=torch.bfloat16))
        dist.reduce_scatter(torch.empty(50), [torch.ones(50), torch.ones(50)])
        dist.broadcast(torch.ones(7, dtype=torch.int64), 1)
        uneven = [3, 5] if rank == 0 else [4, 1]
        theirs = [3, 4] if rank == 0 else [5, 1]
        dist.all_to_all_single(torch.empty(sum(theirs)), torch.ones(sum(uneven)), theirs, uneven)
        dist.send(torch.ones(9), 1) if rank == 0 else dist.recv(torch.ones(9), 0)
        dist.barrier()
        dist.all_reduce(torch.ones(3).to_sparse())
    dist.all_reduce(torch.ones(100))  # no longer seen
    return {"lines": [_summary(line) for line in audit.lines], "rest": audit.not_counted, "where": audit.lines[0].where}


def test_single_collectives_are_counted_by_kind_and_dtype() -> None:
    first, second = run_ranks(2, _single_collectives)
    shared = [
        ("all_reduce", "float32", 2, 800, 800, 800),
        ("all_gather", "bfloat16", 1, 20, 20, 20),
        ("reduce_scatter", "float32", 1, 400, 400, 200),
        ("barrier", "-", 1, 0, 0, 0),
    ]
    sender = [("broadcast", "int64", 1, 56, 0, 28), ("all_to_all", "float32", 1, 32, 20, 20)]
    receiver = [("broadcast", "int64", 1, 56, 56, 28), ("all_to_all", "float32", 1, 20, 16, 16)]
    assert set(first["lines"]) == {*shared, *sender, ("send", "float32", 1, 36, 36, 36)}
    assert set(second["lines"]) == {*shared, *receiver, ("recv", "float32", 1, 0, 0, 0)}
    assert first["rest"] == {"c10d::allreduce_": 1}, "sparse tensors are named, not counted"
    assert first["where"].startswith("tests/comm_compress/integrations/test_audit.py:")


def _blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32))


def _trained(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.ones(4, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _fsdp2(audited: bool) -> dict[str, Any]:
    model = _blocks()
    for block in model:
        fully_shard(block)
    fully_shard(model)
    handle = cc.attach(model, reduce_scatter="int8")
    if not audited:
        _trained(model)
        return {"weights": [p.full_tensor().tolist() for p in model.parameters() if isinstance(p, DTensor)]}
    with cc.audit(handle) as audit:
        _trained(model)
    return {
        "weights": [p.full_tensor().tolist() for p in model.parameters() if isinstance(p, DTensor)],
        "ours": sum(line.sent_bytes for line in audit.lines if line.through == "comm_compress"),
        "stock": {line.op for line in audit.lines if line.through == "torch.distributed.fsdp"},
        "code": {line.code for line in audit.lines},
        "claims": audit.claims,
        "ledger": handle.ledger.totals().sent_bytes,
        "table": audit.table(),
    }


def test_what_fsdp2_still_sends_itself_stands_beside_what_the_ledger_claims() -> None:
    seen, plain = run_ranks(2, _fsdp2, True)[0], run_ranks(2, _fsdp2, False)[0]
    assert seen["weights"] == plain["weights"], "counting changes no number"
    assert seen["ours"] == seen["ledger"] > 0
    assert seen["claims"] == [("all_gather", None), ("reduce_scatter", seen["ledger"])]
    assert seen["stock"] == {"all_gather"}, "it was left uncompressed"
    assert {"loss = model(torch.ones(4, 32)).square().mean()", "loss.backward()"} == seen["code"]
    assert "all_gather: not compressed" in seen["table"]


def _others() -> dict[str, Any]:
    found: dict[str, Any] = {}
    replicas = DistributedDataParallel(_blocks())
    with cc.audit() as audit:
        replicas(torch.ones(4, 32)).sum().backward()
    found["ddp"] = sum(line.payload_bytes for line in audit.lines if line.op == "all_reduce")
    found["parameters"] = sum(p.nbytes for p in replicas.parameters())

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    parallel = parallelize_module(_blocks(), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    with cc.audit() as audit:
        parallel(torch.ones(4, 32)).sum().backward()
        parallel[0].weight.full_tensor()
    found["tp"] = {(line.op, line.group, line.payload_bytes, line.through) for line in audit.lines}
    return found


def test_ddps_reducer_and_what_dtensors_move_are_seen() -> None:
    found = run_ranks(2, _others)[0]
    assert found["ddp"] == found["parameters"]
    where = "torch.distributed.tensor"
    activations, weights = 4 * 32 * 4, 64 * 32 * 4 // 2
    assert {(op, size, by) for op, _, size, by in found["tp"]} == {
        ("all_reduce", activations, where),
        ("all_gather", weights, where),
    }


class _Nested(torch.autograd.Function):
    """Backwards within backwards: beyond a depth, autograd takes threads of its own for them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, depth: int, threads: set[int]) -> Tensor:
        ctx.depth, ctx.threads = depth, threads
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.threads.add(threading.get_ident())
        if ctx.depth == 0:
            dist.all_reduce(torch.ones(1))
        else:
            with torch.enable_grad():
                x = torch.ones(1, requires_grad=True)
                torch.autograd.backward(_nested(x, ctx.depth - 1, ctx.threads))
        return gradient, None, None


def _nested(x: Tensor, depth: int, threads: set[int]) -> Tensor:
    result: Tensor = _Nested.apply(x, depth, threads)  # type: ignore[no-untyped-call]
    return result


def _threads() -> dict[str, int]:
    threads: set[int] = set()
    with cc.audit() as audit:
        torch.autograd.backward(_nested(torch.ones(1, requires_grad=True), 80, threads))
    in_backward = sum(line.calls for line in audit.lines)
    with cc.audit() as audit:
        other = threading.Thread(target=dist.all_reduce, args=(torch.ones(1),))
        other.start()
        other.join()
    return {"threads": len(threads), "in_backward": in_backward, "in_another": len(audit.lines)}


def test_threads_of_autograd_are_seen_and_the_users_own_are_not() -> None:
    (found,) = run_ranks(1, _threads)
    assert found["threads"] > 1, "the case that this is about"
    assert found["in_backward"] == 1
    assert found["in_another"] == 0, "docs/comparing/audit.md says so"
