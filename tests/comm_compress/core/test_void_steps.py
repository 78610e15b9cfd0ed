"""A void optimizer step leaves no trace, also when each of its micro-batches reduced gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import comm_compress as cc
from comm_compress.conformance import gradient, segments
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.integrations import allreduce, ddp
from tests.comm_compress.integrations.fsdp.test_hsdp import replicated
from tests.comm_compress.integrations.test_ddp import wrapped
from tests.comm_compress.integrations.test_fsdp import batch, full, loss_of, sharded, worst
from tests.comm_compress.table import build
from tests.distributed import run_ranks

Update = Callable[[nn.Module, bool], None]
METHODS: dict[str, dict[str, Any]] = {
    "feedback": {"reduce_scatter": "topk ratio=0.2"},
    "int8 feedback": {"reduce_scatter": {"method": "int4", "error_feedback": {"dtype": "int8"}}},
    "delta": {"reduce_scatter": "topk ratio=0.2", "all_gather": "delta"},
    "powersgd": {"reduce_scatter": {"method": "powersgd", "rank": 2, "min_compression_rate": 0.1}},
    "dgc": {"reduce_scatter": {"method": "dgc", "ratio": 0.1}},
    "lowrank": {"reduce_scatter": {"method": "lowrank", "rank": 1}},
    "gradiveq": {"reduce_scatter": {"method": "gradiveq", "slice_size": 4, "basis_warmup": 1, "ratio": 0.5}},
    "entropy": {"reduce_scatter": {"method": "topk", "ratio": 0.2, "entropy": "rans"}},
    "layers": {"reduce_scatter": {"method": "topk", "ratio": 0.3, "layers": {"head.*": "int8", "*.bias": "identity"}}},
    "warm-up": {"reduce_scatter": {"method": "topk", "ratio": 0.2, "warmup_steps": 3}},
    "stochastic": {"reduce_scatter": {"method": "qsgd", "bits": 4}},
}


class Sgd:
    """torch's optimizer; a void step is one that it is not asked for."""

    def __init__(self, model: nn.Module, set_to_none: bool = True) -> None:
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.set_to_none = set_to_none

    def update(self, void: bool) -> None:
        if not void:
            self.optimizer.step()

    def clear(self) -> None:
        self.optimizer.zero_grad(self.set_to_none)


class InPlace(Sgd):
    """Gradients are set to zero, not to None."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, set_to_none=False)


class Skipping(Sgd):
    """Skips a void step inside its own `step`, as a fused optimizer does with a gradient scaler."""

    def update(self, void: bool) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.1 * (not void)
        if void:
            for p in self.optimizer.param_groups[0]["params"]:
                p.grad = torch.zeros_like(p)
        self.optimizer.step()


class ByHand(Sgd):
    """No optimizer of torch's."""

    def update(self, void: bool) -> None:
        with torch.no_grad():
            for p in self.optimizer.param_groups[0]["params"]:
                if not void and p.grad is not None:
                    p -= 0.1 * p.grad


def tensors(handle: Any) -> dict[str, Tensor]:
    """What is remembered of gradients."""
    entries = {key: entry for key, entry in handle.state_dict().items() if not key.startswith("all_gather/")}
    return {f"{key}/{name}": t for key, entry in entries.items() for name, t in entry["tensors"].items()}


def run(model: nn.Module, handle: Any, kind: type[Sgd], void: bool, first_void: bool = False) -> dict[str, Tensor]:
    """Steps 0 and 1, of three micro-batches that each reduce, and between them a void one, or none; what is left."""
    sgd = kind(model)  # type: ignore[call-arg]
    net = getattr(model, "module", model)
    steps = [(0, False), *([(7, True)] * void), (1, False)]
    for step, is_void in [(8, True), *steps] if first_void else steps:
        for micro in range(3):
            net.nan_in_backward = is_void and micro == 2 and dist.get_rank() == 1
            loss_of(model, batch(dist.get_rank(), 10 * step + micro)).backward()
            net.nan_in_backward = False
        sgd.update(is_void)
        if is_void:
            handle.rollback()
        sgd.clear()
    kept = full(model) if net is model else {n: p.detach().clone() for n, p in model.named_parameters()}
    return {**kept, **tensors(handle)}


def _traces(methods: dict[str, Any], kind: type[Sgd]) -> float:
    made = []
    for void in (False, True):
        model = sharded()
        made.append(run(model, cc.attach(model, **methods), kind, void, first_void=void))
    return worst(*made)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_of_a_void_step_is_left(name: str) -> None:
    assert run_ranks(2, _traces, METHODS[name], Sgd) == [0, 0]


@pytest.mark.parametrize("kind", [InPlace, Skipping, ByHand])
def test_nothing_of_a_void_step_is_left_whatever_updates(kind: type[Sgd]) -> None:
    assert run_ranks(2, _traces, METHODS["feedback"], kind) == [0, 0]


def _traces_between_replicas() -> float:
    made = []
    for void in (False, True):
        model = replicated()
        method = "topk ratio=0.3"
        handle = cc.attach(model, reduce_scatter=method, all_reduce=method, all_reduce_gather="delta")
        made.append(run(model, handle, Sgd, void, first_void=void))
    return worst(*made)


def test_nothing_of_a_void_step_is_left_between_replicas() -> None:
    assert run_ranks(4, _traces_between_replicas, timeout=240) == [0] * 4


def _traces_of_buckets() -> list[float]:
    distances = []
    for kind in (Sgd, InPlace, Skipping):
        made = []
        for void in (False, True):
            model = wrapped(find_unused_parameters=True, bucket_cap_mb=0.0002)
            made.append(run(model, ddp.attach(model, "topk ratio=0.2", "delta"), kind, void))
        distances.append(worst(*made))
    return distances


def test_nothing_of_a_void_step_is_left_under_ddp() -> None:
    assert run_ranks(2, _traces_of_buckets) == [[0, 0, 0]] * 2


def _told() -> dict[str, bool]:
    """Who only says so (`step_ended`); and what is not of this model ends no step."""
    found = {}
    for told in (True, False):
        model = sharded()
        handle = cc.attach(model, reduce_scatter="topk ratio=0.2")
        sgd = InPlace(model)
        loss_of(model, batch(dist.get_rank(), 0)).backward()
        other = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
        other.step()
        if told:
            handle.step_ended()
        sgd.clear()
        loss_of(model, batch(dist.get_rank(), 1)).backward()
        handle.rollback()
        found[f"told {told}"] = all(int(e["tensors"]["tick"]) == told for e in handle.state_dict().values())
    return found


def test_a_step_ends_where_an_optimizer_of_the_model_steps_or_where_someone_says_so() -> None:
    assert run_ranks(2, _told) == [{"told True": True, "told False": True}] * 2


TOPK = ("topk", {"ratio": 0.3})
FACTORS = ("powersgd", {"rank": 1, "min_compression_rate": 0.1, "warmup_steps": 2})  # then gathers the rest only


@pytest.mark.parametrize(
    ("method", "config"),
    [
        (TOPK, {}),
        (TOPK, {"mode": "lossless"}),
        (TOPK, {"mode": "grid"}),
        (TOPK, {"predict": 0.5, "values": {"method": "uniform", "block_size": 96}}),
        (FACTORS, {}),
    ],
    ids=str,
)
def test_sums_that_are_sent_as_changes_are_taken_back_too(
    method: tuple[str, dict[str, Any]], config: dict[str, Any]
) -> None:
    world, n = 2, 60
    reduce, gather = build(*method), build("delta", config)
    made = []
    for steps in ([0, 1], [0, -7, 1]):
        states = [State("unit", rank, world, 0, segments(world, n), lasting=False) for rank in range(world)]
        for step in steps:
            for micro in range(2):
                for state in states:
                    state.begin(goes_on=micro > 0)
                inputs = gradient(world, n, abs(10 * step) + micro)
                simulate.lockstep(
                    [allreduce.all_reduce(x, reduce, gather, s, world) for x, s in zip(inputs, states, strict=True)]
                )
            for state in states if step < 0 else []:
                state.rollback()
        made.append(states[0].state_dict())
    assert any(name.endswith("replicas") for name in made[0])
    assert made[0].keys() == made[1].keys()
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
