"""Prefetched all-gathers on a CPU: the same numbers and bytes, earlier."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from comm_compress.integrations.fsdp import _compat
from comm_compress.integrations.fsdp.prefetch import Prefetch, _in_order_of_use
from tests.comm_compress.integrations.test_fsdp import Net, _groups, batch, full, loss_of, sharded, worst
from tests.distributed import run_ranks

Gathers = list[tuple[str, dict[str, Any]]]
GATHERS: Gathers = [
    ("none", {}),
    ("identity", {}),
    ("int8", {"block_size": 8}),
    ("bf16", {"entropy": "rans"}),  # ragged
    ("delta", {}),  # remembers, sends nothing in backward
    ("int8", {"layers": {"*bias": "bf16"}}),  # two rounds
]


class Steps:
    """Training steps with an evaluation between them, and what came of them."""

    def __init__(self, model: nn.Module, prefetch: int, gather: tuple[str, dict[str, Any]] = ("none", {})) -> None:
        self.model = model
        self.handle = cc.attach(
            model,
            reduce_scatter=cc.make("int8"),
            all_gather=cc.make(gather[0], gather[1]),
            prefetch=prefetch,
            overlap_reduce=0,  # whose workspaces are not counted here
        )
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        self.losses: list[float] = []

    def step(self, number: int, **options: Any) -> None:
        loss = loss_of(self.model, batch(dist.get_rank(), number), **options)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(float(loss.detach()))

    def evaluate(self, **options: Any) -> None:
        with self.handle.exact(), torch.no_grad():
            self.losses.append(float(loss_of(self.model, batch(9, 9), **options)))
        for _, group in _groups(self.model):
            group.reshard()

    def outcome(self) -> tuple[dict[str, Tensor], list[float], int]:
        return full(self.model), self.losses, self.handle.ledger.totals().sent_bytes


def _trained(reshard: bool | int, prefetch: int, gather: tuple[str, dict[str, Any]]) -> tuple[Any, int]:
    model, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in [*model.blocks, model.branch]:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh)
    run = Steps(model, prefetch, gather)
    for number in range(4):
        # in steps 1 and 3 prefetched in vain; delta would then send two changes, each rounded, instead of one
        run.step(number, branch=number not in (1, 3) or gather[0] == "delta")
        if number in (2, 3):
            run.evaluate(branch=number == 2)
    return run.outcome(), len(run.handle.workspaces._all)


def _same_with_and_without(reshard: bool | int, gathers: Gathers) -> list[str]:
    wrong = []
    for gather in gathers:
        without, _ = _trained(reshard, 0, gather)
        for ahead in (2, 1) if gather == GATHERS[2] else (2,):
            with_, workspaces = _trained(reshard, ahead, gather)
            unused = with_[2] - without[2]
            if worst(without[0], with_[0]) != 0 or without[1] != with_[1]:
                wrong.append(f"{gather}, reshard {reshard}: other numbers")
            if unused < 0 or (unused and gather[0] == "delta"):
                wrong.append(f"{gather}, reshard {reshard}: {unused} bytes more")
            # one ahead and no gather in backward: always one collective at a time
            overlaps = dist.get_world_size() > 1 and gather[0] != "none" and (ahead > 1 or reshard is not False)
            if (workspaces > 1) != overlaps:
                wrong.append(f"{gather}, reshard {reshard}: {workspaces} collectives at a time")
    return wrong


@pytest.mark.parametrize(
    ("world", "reshard", "gathers"),
    [
        (1, True, [GATHERS[0], GATHERS[2], GATHERS[4]]),
        (3, True, GATHERS),
        (2, False, GATHERS),
        (4, 2, GATHERS[2:5]),  # backward gathers from a half of the ranks: what is whole, ragged, remembered
    ],
    ids=["one rank", "gathered twice", "gathered once", "gathered from half"],
)
def test_no_number_changes(world: int, reshard: bool | int, gathers: Gathers) -> None:
    assert run_ranks(world, _same_with_and_without, reshard, gathers) == [[]] * world


def _bytes(prefetch: int) -> int:
    run = Steps(sharded(), prefetch, ("int8", {}))
    for number in range(3):
        run.step(number)
    return run.handle.ledger.totals().sent_bytes


def _setting_up() -> dict[str, Any]:
    seen: dict[str, Any] = {"bytes": [_bytes(0), _bytes(1), _bytes(2)]}
    model = sharded()
    names = {m: name for name, m in model.named_modules()}

    def asked() -> dict[str, list[list[str]]]:
        both = (_compat.forward_prefetch, _compat.backward_prefetch)
        units = [m for m in names if hasattr(m, "unshard")]
        return {names[m]: [[names[s._modules[0]] for s in of(m)] for of in both] for m in units}  # type: ignore[arg-type]

    model.blocks[0].set_modules_to_forward_prefetch([model.branch])  # type: ignore[operator]
    before = asked(), [g.unshard_async_op for _, g in _groups(model)], len(model._forward_hooks)
    run = Steps(model, 2, ("int8", {}))
    run.step(0)
    seen["asked"] = asked()
    run.handle.detach()
    seen["undone"] = before == (asked(), [g.unshard_async_op for _, g in _groups(model)], len(model._forward_hooks))
    return seen


def test_what_is_set_up_is_undone_and_costs_no_bytes() -> None:
    for seen in run_ranks(2, _setting_up):
        assert seen["asked"] == {
            "": [["blocks.0", "blocks.1"], ["branch", "blocks.1"]],
            "blocks.0": [["branch"], []],  # told so by the user
            "blocks.1": [["branch"], ["blocks.0"]],
            "branch": [[], ["blocks.1", "blocks.0"]],
        }
        assert seen["undone"]
        assert len(set(seen["bytes"])) == 1


def _exception(prefetch: int) -> tuple[Any, str]:
    run = Steps(sharded(), prefetch, ("int8", {"block_size": 8}))
    run.step(0)
    hook = run.model.blocks[0].register_forward_hook(lambda *_: 1 / 0)  # type: ignore[index, operator]
    try:
        run.step(1)
        message = ""
    except ZeroDivisionError as e:
        message = str(e)
    hook.remove()
    run.handle.rollback()
    run.step(1)
    run.step(2)
    return run.outcome(), message


def _after_an_exception() -> tuple[bool, bool]:
    (without, message), (with_, _) = _exception(0), _exception(2)
    return bool(message), worst(without[0], with_[0]) == 0


def test_training_goes_on_after_an_exception_in_forward() -> None:
    assert run_ranks(2, _after_an_exception) == [(True, True)] * 2


class Twice(nn.Module):
    """The same unit at two places, and a unit in a unit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.b(self.a(nn.functional.one_hot(x % 5, 5).float())))


def _repeated(prefetch: int) -> Any:
    model, mesh = Twice(), init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model.b[1], model.b, model.a, model):
        fully_shard(part, mesh=mesh)
    run = Steps(model, prefetch, ("int8", {"block_size": 8}))
    for number in range(3):
        run.step(number)
    return run.outcome()


def _repeats() -> tuple[float, bool]:
    without, with_ = _repeated(0), _repeated(2)
    return worst(without[0], with_[0]), without[1:] == with_[1:]


def test_a_unit_used_twice_is_not_prefetched_in_vain() -> None:
    assert run_ranks(2, _repeats) == [(0, True)] * 2


def test_units_begin_before_those_inside_them() -> None:
    model = Twice()
    ended = [model.a, model.b[1], model.b, model.a, model]
    assert _in_order_of_use(ended) == [model, model.a, model.b, model.b[1], model.a]  # type: ignore[arg-type]


def test_a_model_without_units_is_left_alone() -> None:
    model = Net()
    Prefetch(model, 1)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
