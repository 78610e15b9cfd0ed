"""``keep_frozen``: frozen parameters are sent once, whatever the method, and no number changes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import comm_compress as cc
from comm_compress.core.rounds import AllReduce, sent_by
from tests.comm_compress.integrations.test_fsdp import full, worst
from tests.comm_compress.table import build
from tests.comm_compress.test_breadth import Adapted
from tests.distributed import run_ranks

FROZEN = 2 * (6 * 6 + 6)  # elements of `Adapted`'s base and last, in units "root" and "last"
MIXED = MixedPrecisionPolicy(torch.bfloat16, torch.float32)


def sharded(mixed: MixedPrecisionPolicy | None = None, **options: Any) -> Adapted:
    model, mesh = Adapted(), init_device_mesh("cpu", (dist.get_world_size(),))
    options |= {"mp_policy": mixed} if mixed else {}
    fully_shard(model.last, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)  # type: ignore[return-value]


def loss_of(model: nn.Module, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return model(torch.randn(4, 6, generator=generator)).float().square().mean()


def train(model: nn.Module, steps: range = range(4)) -> dict[str, Tensor]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    for step in steps:
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return full(model)


def agreeing(kept: int, forwards: int, world: int) -> int:
    """Bytes in which ranks agree before each forward that nothing has changed: one for every parameter kept."""
    return forwards * 2 * (world - 1) * -(-kept // world)


def padded(width: int, world: int) -> int:
    """Elements that the other ranks get of a parameter of 6 rows of ``width``, FSDP2's padding included."""
    return (world - 1) * -(-6 // world) * width


# ---- numbers --------------------------------------------------------------------------------------------------


def _like_stock() -> dict[str, float]:
    seen = {}
    world = dist.get_world_size()
    resharded: tuple[Any, ...] = (2,) if world == 4 else (True, False)
    for mixed in (None, MIXED):
        for reshard in resharded:
            stock = train(sharded(mixed, reshard_after_forward=reshard))
            for name in ("none", "identity"):
                for prefetch in (0, 2):
                    model = sharded(mixed, reshard_after_forward=reshard)
                    cc.attach(model, all_gather=cc.make(name), keep_frozen=True, prefetch=prefetch)
                    key = f"{name} {mixed is None} {reshard} {prefetch}"
                    seen[key] = worst(train(model), stock)
    return seen


@pytest.mark.parametrize("world", [2, 4])
def test_it_trains_like_stock_bit_for_bit(world: int) -> None:
    for seen in run_ranks(world, _like_stock):
        assert set(seen.values()) == {0}, seen


# ---- bytes ----------------------------------------------------------------------------------------------------


def _bytes(name: str, config: dict[str, Any]) -> dict[str, Any]:
    model = sharded()
    handle = cc.attach(model, all_gather=cc.make(name, config), keep_frozen=True)
    on_the_wire, send = 0, dist.isend

    def counted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        nonlocal on_the_wire
        on_the_wire += tensor.nbytes
        return send(tensor, *args, **options)

    def counted_ring(tensor: Tensor, *args: Any, **options: Any) -> Any:
        nonlocal on_the_wire
        on_the_wire += sent_by(AllReduce(tensor, "max"), dist.get_rank(), dist.get_world_size()).total
        return ring(tensor, *args, **options)

    dist.isend, ring, dist.all_reduce = counted, dist.all_reduce, counted_ring
    by_step: list[int] = []
    for step in range(3):
        train(model, range(step, step + 1))
        by_step.append(handle.ledger.totals("all_gather").sent_bytes - sum(by_step))
    last = handle.ledger.totals("all_gather", "last")
    dist.isend, dist.all_reduce = send, ring
    return {
        "by step": by_step,
        "wire": on_the_wire == handle.ledger.totals().sent_bytes,
        "frozen unit": (last.sent_bytes, last.calls, last.extra_collectives, last.raw_bytes),
        "memory": (handle.frozen_bytes, handle.state_bytes),
    }


@pytest.mark.parametrize("world", [2, 4])
def test_frozen_parameters_are_sent_once_and_counted_once(world: int) -> None:
    frozen = 4 * 2 * (padded(6, world) + padded(1, world))
    rows = -(-2 // world) * 6 + -(-6 // world) * 2  # trainable: down [2, 6] and up [6, 2]
    for seen in run_ranks(world, _bytes, "none", {}):
        trainable = (world - 1) * 4 * rows
        quiet = trainable + agreeing(4, 1, world)
        assert seen["by step"] == [frozen + trainable, quiet, quiet], "the root is gathered once a step"
        assert seen["wire"], "what is posted is what is counted"
        sent, calls, extra, raw = seen["frozen unit"]
        assert sent == frozen // 2
        assert extra == 0
        assert raw == calls * sent, "raw: what FSDP2 would have sent"
        assert seen["memory"] == (2 * 4 * world * -(-6 // world) * 7,) * 2, "all rows, as gathered"
    for seen in run_ranks(world, _bytes, "bf16", {}):
        assert seen["wire"]
        quiet = trainable // 2 + agreeing(4, 1, world)
        assert seen["by step"] == [frozen + trainable // 2, quiet, quiet], "the frozen ones are exact"


# ---- change ---------------------------------------------------------------------------------------------------


def _changes(name: str) -> dict[str, Any]:
    """Everything that can happen to a frozen parameter, beside stock."""
    seen: dict[str, Any] = {}
    models = [sharded(), sharded()]
    handle = cc.attach(models[1], all_gather=cc.make(name), keep_frozen=True)

    def both(what: str, change: Any) -> None:
        for model in models:
            change(model)
        before = handle.ledger.totals("all_gather").sent_bytes
        a, b = (train(model, range(2)) for model in models)
        seen[what] = (worst(a, b), handle.ledger.totals("all_gather").sent_bytes - before)

    def loaded(model: Any) -> None:
        new = {n: torch.full_like(p, 0.1) for n, p in model.named_parameters() if not p.requires_grad}
        model.load_state_dict(new, strict=False)

    def scaled(model: Any) -> None:
        with torch.no_grad():
            model.last.weight.mul_(0.5)

    def merged(model: Any) -> None:  # as adapters are merged into what they adapt
        model.last.weight.data += 0.25

    def one_row(model: Any) -> None:
        with torch.no_grad():
            torch._foreach_mul_([model.last.bias.to_local()[: dist.get_rank() == 0]], 2.0)

    def exchanged(model: Any) -> None:
        state = {n: p.detach() * 2 for n, p in model.last.named_parameters()}
        model.last.load_state_dict(state, assign=True)
        model.last.requires_grad_(False)

    both("first", lambda model: None)
    both("nothing", lambda model: None)
    both("loaded", loaded)
    both("scaled", scaled)
    both("merged", merged)
    both("one rank's row", one_row)
    both("assigned", exchanged)
    both("thawed", lambda model: model.base.requires_grad_(True))
    seen["memory thawed"] = handle.frozen_bytes
    both("frozen again", lambda model: model.base.requires_grad_(False))
    both("all trainable", lambda model: model.requires_grad_(True))
    seen["memory all trainable"] = handle.frozen_bytes
    both("and back", lambda model: (model.base.requires_grad_(False), model.last.requires_grad_(False)))
    both("forgotten", lambda model: handle.forget_frozen())
    return seen


@pytest.mark.parametrize("world", [2, 4])
def test_a_change_of_frozen_parameters_is_noticed(world: int) -> None:
    """World 4: the last rank holds no row of a frozen matrix of six, and must notice all the same."""
    weight, bias = 4 * padded(6, world), 4 * padded(1, world)
    rows = (world - 1) * 4 * (-(-2 // world) * 6 + -(-6 // world) * 2)
    for seen in run_ranks(world, _changes, "none"):
        memory = seen.pop("memory thawed"), seen.pop("memory all trainable")
        assert memory == (4 * world * -(-6 // world) * 7, 0)
        assert {what: distance for what, (distance, _) in seen.items()} == dict.fromkeys(seen, 0)
        both, one = agreeing(4, 2, world), agreeing(4, 1, world)
        for what, frozen, agreed in (
            ("first", 2 * (weight + bias), one),
            ("nothing", 0, both),
            ("loaded", 2 * (weight + bias), both),
            ("scaled", weight, both),
            ("merged", weight, both),
            ("one rank's row", bias, both),
            ("assigned", weight + bias, both),
            ("frozen again", weight + bias, agreeing(2, 1, world) + one),  # it has moved while it was trainable
            ("and back", 2 * (weight + bias), one),
            ("forgotten", 2 * (weight + bias), one),
        ):
            assert seen[what][1] == 2 * rows + frozen + agreed, what  # two steps


def test_a_method_with_memory_follows_what_is_trainable() -> None:
    for seen in run_ranks(2, _changes, "delta"):
        seen.pop("memory thawed"), seen.pop("memory all trainable")
        assert all(distance < 0.3 for distance, _ in seen.values()), seen


# ---- evaluation, checkpoints, the way out, advice -----------------------------------------------------------------


def _around() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    model = sharded()
    handle = cc.attach(model, all_gather=build("int8", {}), keep_frozen=True)
    with torch.no_grad(), handle.exact():
        loss_of(model, 0)
    sent = handle.ledger.totals()
    seen["entered in an evaluation"] = sent.sent_bytes
    with torch.no_grad(), handle.exact():
        loss_of(model, 0)
        seen["exact"] = float(loss_of(model, 0)) - float(loss_of(sharded(), 0))
    seen["later evaluations"] = handle.ledger.totals() == sent
    train(model)
    saved = handle.state_dict()
    seen["saved"] = sum(t.numel() for entry in saved.values() for t in entry["tensors"].values())
    second = cc.attach(sharded(), all_gather=build("int8", {}), keep_frozen=True)
    second.load_state_dict(saved)
    handle.detach()
    seen["detached"] = handle.frozen_bytes
    stock = sharded()
    stock.load_state_dict(model.state_dict())
    seen["then stock"] = worst(train(model), train(stock))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cc.attach(sharded(), reduce_scatter=cc.make("int8"))
        cc.attach(sharded(), reduce_scatter=cc.make("int8"), keep_frozen=True)
        half = sharded()
        half.base.requires_grad_(True)
        cc.attach(half, reduce_scatter=cc.make("int8"))
    seen["advice"] = [str(w.message) for w in caught if "comm_compress" in str(w.message)]
    return seen


def test_evaluation_checkpoints_detach_and_advice() -> None:
    for rank, seen in enumerate(run_ranks(2, _around)):
        assert seen["entered in an evaluation"] >= 4 * FROZEN // 2, "it is sent for all that follows"
        assert seen["exact"] == 0
        assert seen["later evaluations"]
        assert seen["saved"] == 2, "the ticks of two units: what is kept is sent anew by whoever resumes"
        assert seen["detached"] == 0
        assert seen["then stock"] == 0
        assert len(seen["advice"]) == (rank == 0)
        assert all("78 % of the sharded parameters are frozen" in message for message in seen["advice"])
        assert all("keep_frozen=True" in message for message in seen["advice"])
