"""`VirtualRanks` against real ranks under FSDP2 and `attach`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import comm_compress as cc
from tests.distributed import run_ranks

UNITS = ["blocks.0", "blocks.1", "blocks.1.inner", "branch"]
BF16 = torch.bfloat16
RUNS: list[tuple[dict[str, Any] | None, dict[str, Any] | None, torch.dtype | None]] = [
    ({"method": "identity"}, None, None),
    ({"method": "identity"}, {"method": "identity"}, None),
    ({"method": "int8"}, {"method": "int8"}, None),
    ({"method": "topk", "ratio": 0.1}, None, None),
    ({"method": "topk", "ratio": 0.2, "layers": {"*bias": "none"}}, {"method": "bf16"}, None),
    (None, {"method": "int8", "block_size": 16}, None),
    ({"method": "identity"}, None, BF16),
    ({"method": "topk", "ratio": 0.1}, {"method": "delta"}, BF16),  # which follows the float32 parameters
    (None, {"method": "int8"}, BF16),
]
STEPS = 3  # the branch comes, goes and comes back
UNUSED_AS_ZEROS = torch.__version__ >= "2.13"  # docs/library/breadth.md; virtual ranks always reduce them so


class Block(nn.Module):
    """A unit with a unit inside, and parameters of its own before and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.inner = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(self.first(x))) * self.scale


class Net(nn.Module):
    """Nested units, a tied pair of parameters, a frozen one, a branch that comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(13, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6), Block()])
        self.branch = nn.Linear(6, 6, bias=False)
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(6, 13, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor, branch: bool) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        h = h + self.frozen(h)
        return self.head(h + self.branch(h) if branch else h)


def loss_of(model: nn.Module, rank: int, step: int, device: str = "cpu") -> Tensor:
    tokens = torch.randint(13, (4, 7), generator=torch.Generator().manual_seed(100 * step + rank)).to(device)
    logits = model(tokens[:, :-1], branch=step % 2 == 0 or not UNUSED_AS_ZEROS)
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def made(config: dict[str, Any] | None) -> cc.Compressor | None:
    return None if config is None else cc.make(config["method"], {k: v for k, v in config.items() if k != "method"})


def _real() -> list[dict[str, Any]]:
    results = []
    for scatter, gather, dtype in RUNS:
        model, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for unit in (model.blocks[0], model.blocks[1].inner, model.blocks[1], model.branch):
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        # no prefetch: it would gather the branch also in steps without it
        handle = cc.attach(model, reduce_scatter=made(scatter), all_gather=made(gather), prefetch=0, seed=9)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
        for step in range(STEPS):
            loss = loss_of(model, dist.get_rank(), step)
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        states = {
            f"{key}/{name}": tensor.numpy()
            for key, entry in handle.state_dict().items()
            for name, tensor in entry["tensors"].items()
        }
        totals = [handle.ledger.totals("reduce_scatter"), handle.ledger.totals("all_gather")]
        results.append({"losses": losses, "states": states, "bytes": [_counts(t) for t in totals]})
    return results


def _counts(totals: cc.Totals) -> tuple[int, ...]:
    return (totals.calls, totals.elements, totals.raw_bytes, totals.sent_bytes, totals.extra_collectives)


def virtual(
    world: int, scatter: Any, gather: Any, dtype: torch.dtype | None
) -> tuple[cc.VirtualRanks, list[list[float]]]:
    model, methods = Net(), {"reduce_scatter": made(scatter), "all_gather": made(gather)}
    ranks = cc.VirtualRanks(model, world, UNITS, **methods, seed=9, param_dtype=dtype)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for step in range(STEPS):
        losses.append([])
        with ranks.gathered():
            for rank in range(world):
                loss = loss_of(model, rank, step)
                loss.backward()
                losses[-1].append(loss.item())
                ranks.collect(rank)
        ranks.reduce()
        optimizer.step()
        optimizer.zero_grad()
    return ranks, losses


@pytest.mark.parametrize("world", [2, 3, 4])
def test_virtual_ranks_train_like_real_ones(world: int) -> None:
    torch.set_num_threads(1)
    real = run_ranks(world, _real)
    for run, (scatter, gather, dtype) in enumerate(RUNS):
        ranks, losses = virtual(world, scatter, gather, dtype)
        saved = ranks.state_dicts()
        for rank in range(world):
            there = real[rank][run]
            here = [step[rank] for step in losses]
            if world == 2:
                assert here == there["losses"], (scatter, gather)
            else:
                close = pytest.approx(there["losses"], rel=1e-4 if dtype is None else 1e-2)
                assert here == close, (scatter, gather)
            states = {f"{k}/{n}": t for k, e in saved[rank].items() for n, t in e["tensors"].items()}
            assert states.keys() == there["states"].keys()
            ticks = {k: int(v) for k, v in states.items() if k.endswith("tick")}
            assert ticks == {k: int(v) for k, v in there["states"].items() if k.endswith("tick")}
            if world == 2:
                assert all((states[k].numpy() == v).all() for k, v in there["states"].items())
            ledger = ranks.ledgers[rank]
            assert [_counts(ledger.totals("reduce_scatter")), _counts(ledger.totals("all_gather"))] == there["bytes"]


def test_a_nan_of_one_rank_is_in_everyones_part_and_rollback_takes_it_back() -> None:
    model = Net()
    ranks = cc.VirtualRanks(model, 3, UNITS, reduce_scatter=made({"method": "topk", "ratio": 0.5}))

    def step(number: int, bad: int | None) -> None:
        model.zero_grad()
        for rank in range(3):
            (loss_of(model, rank, number) * (float("nan") if rank == bad else 1)).backward()
            ranks.collect(rank)
        ranks.reduce()

    step(0, None)
    before = copy.deepcopy(ranks.state_dicts())
    step(2, 1)
    gradient = model.embed.weight.grad
    assert gradient is not None
    chunks = gradient.split(5)  # ceil(13 / 3) rows a rank
    assert all(not torch.isfinite(chunk).all() for chunk in chunks)
    assert [ledger.totals().nonfinite_inputs > 0 for ledger in ranks.ledgers] == [False, True, False]
    ranks.rollback()
    for old, new in zip(before, ranks.state_dicts(), strict=True):
        assert all(torch.equal(old[k]["tensors"][n], t) for k, e in new.items() for n, t in e["tensors"].items())


def test_parameters_are_exact_outside_and_compressed_inside() -> None:
    model = Net()
    exact = {k: p.detach().clone() for k, p in model.named_parameters()}
    ranks = cc.VirtualRanks(model, 4, UNITS, all_gather=made({"method": "int8"}))
    with ranks.gathered():
        loss_of(model, 0, 0)
        inside = {k: p.detach().clone() for k, p in model.named_parameters()}
    assert all(torch.equal(p, exact[k]) for k, p in model.named_parameters())
    error = max(float((inside[k] - exact[k]).abs().max()) for k in exact)
    assert 0 < error <= max(float(p.abs().max()) for p in exact.values()) / 127 / 2 * 1.001


def test_evaluation_in_bf16_is_exact_but_for_the_rounding_and_counts_nothing() -> None:
    model = Net()
    exact = {k: p.detach().clone() for k, p in model.named_parameters()}
    ranks = cc.VirtualRanks(model, 2, UNITS, all_gather=made({"method": "int8"}), param_dtype=BF16)
    with ranks.exact(), torch.no_grad():
        logits = model(torch.zeros(1, 3, dtype=torch.int64), branch=True)
        assert logits.dtype == BF16
        assert all(torch.equal(p, exact[k].to(BF16)) for k, p in model.named_parameters())
    assert all(torch.equal(p, exact[k]) and p.dtype == torch.float32 for k, p in model.named_parameters())
    assert ranks.ledger.totals().sent_bytes == 0
    with pytest.raises(ValueError, match=r"param_dtype = torch.float16, unit 'root' is torch.float32"):
        cc.VirtualRanks(Net(), 2, UNITS, param_dtype=torch.float16)
    with pytest.raises(ValueError, match=r"unit 'root' is torch.bfloat16: virtual ranks compute in"):
        cc.VirtualRanks(Net().to(BF16), 2, UNITS, param_dtype=BF16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [None, BF16], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    "methods", [("int8", "int8"), ("int4 hadamard", "delta"), ("topk ratio=0.1 indices=packed", "bf16")]
)
def test_virtual_ranks_on_a_gpu_send_what_those_on_a_cpu_do(methods: tuple[str, str], dtype: Any) -> None:
    """Gradients may differ by products in another order, and so by a step of the quantiser here and there."""
    results = []
    for device in ("cpu", "cuda"):
        model = Net().to(device)
        ranks = cc.VirtualRanks(model, 2, UNITS, reduce_scatter=methods[0], all_gather=methods[1], param_dtype=dtype)
        for step in range(2):
            model.zero_grad()
            with ranks.gathered():
                for rank in range(2):
                    loss_of(model, rank, step, device).backward()
                    ranks.collect(rank)
            ranks.reduce()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        results.append((torch.cat([g.flatten() for g in gradients]), [_counts(x.totals()) for x in ranks.ledgers]))
    (on_cpu, counted), (on_gpu, counted_there) = results
    assert counted_there == counted
    assert torch.isfinite(on_gpu).all()
    assert float(torch.nn.functional.cosine_similarity(on_cpu, on_gpu, dim=0)) > 0.95


def test_one_virtual_rank_sends_nothing_and_many_agree_with_the_serial_mean() -> None:
    one = cc.VirtualRanks(Net(), 1, UNITS, reduce_scatter=made({"method": "topk"}), all_gather=made({"method": "int8"}))
    with one.gathered():
        loss_of(one._model, 0, 0).backward()
        one.collect(0)
    one.reduce()
    assert one.ledger.totals() == cc.Totals()
    serial, model = Net(), Net()
    ranks = cc.VirtualRanks(model, 64, UNITS, reduce_scatter=made({"method": "identity"}))
    for rank in range(64):
        (loss_of(serial, rank, 0) / 64).backward()
        loss_of(model, rank, 0).backward()
        ranks.collect(rank)
    ranks.reduce()
    for p, q in zip(model.parameters(), serial.parameters(), strict=True):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-7)


def test_mistakes_are_named() -> None:
    for world, units, words in ((2, ["block"], "not modules"), (0, [], "world = 0"), (2, ["head"], "is shared")):
        with pytest.raises(ValueError, match=words):
            cc.VirtualRanks(Net(), world, units)
    with pytest.raises(ValueError, match="at most 127"):
        cc.VirtualRanks(Net(), 128, [], reduce_scatter=made({"method": "int8", "scale": "global"}))
    ranks = cc.VirtualRanks(Net(), 1, [])
    loss_of(ranks._model, 0, 0).backward()
    ranks.collect(0)
    ranks.reduce()
    with pytest.raises(ValueError, match="zero_grad"):
        ranks.collect(0)
