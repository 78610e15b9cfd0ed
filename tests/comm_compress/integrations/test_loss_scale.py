"""Gradients that come with a scale which changes: what is remembered of them must not depend on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy

import comm_compress as cc
from comm_compress.integrations import ddp
from tests.comm_compress.integrations.fsdp.test_hsdp import replicated
from tests.comm_compress.integrations.test_ddp import wrapped
from tests.comm_compress.integrations.test_fsdp import batch, full, gradients, loss_of, sharded
from tests.distributed import run_ranks

SCALES = [2.0**16, 2.0**8, 2.0**8, 2.0**17]  # one fell, one rose: as a GradScaler's do
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("identity", {}),
    ("topk", {"ratio": 0.2}),
    ("int4", {"error_feedback": {"dtype": "bf16"}}),
    ("dgc", {"ratio": 0.2}),
    ("powersgd", {"rank": 1}),
]
Built = tuple[Any, Any, Callable[[Any], dict[str, Tensor]]]


def fsdp(name: str, settings: dict[str, Any]) -> Built:
    model = sharded()
    return model, cc.attach(model, reduce_scatter=cc.make(name, settings)), gradients


def hsdp(name: str, settings: dict[str, Any]) -> Built:
    model, between = replicated(), cc.make(name, settings)
    return model, cc.attach(model, reduce_scatter=cc.make("int8"), all_reduce=between), gradients


def data_parallel(name: str, settings: dict[str, Any]) -> Built:
    model, method = wrapped(), cc.make(name, settings)
    assert method is not None
    found: Callable[[Any], dict[str, Tensor]] = lambda m: {n: p.grad for n, p in m.named_parameters()}  # noqa: E731
    return model, ddp.attach(model, method), found


def courses(build: Callable[..., Built], name: str, settings: dict[str, Any]) -> list[list[dict[str, Tensor]]]:
    """The gradients of some steps, plainly, and with a scale that is told and taken off again."""
    found = []
    for scales in ([1.0] * len(SCALES), SCALES):
        model, handle, of = build(name, settings)
        steps = []
        for step, scale in enumerate(scales):
            model.zero_grad()
            handle.loss_scale = scale
            (loss_of(model, batch(dist.get_rank(), step)) * scale).backward()
            steps.append({name: g / scale for name, g in of(model).items()})
        found.append(steps)
    return found


def _differences(build: Callable[..., Built], methods: list[tuple[str, dict[str, Any]]]) -> list[str]:
    found = []
    for name, settings in methods:
        plain, scaled = courses(build, name, settings)
        for step, (a, b) in enumerate(zip(plain, scaled, strict=True)):
            found += [f"{name}: step {step}: {key}" for key in a if not torch.equal(a[key], b[key])]
    return found


@pytest.mark.parametrize(("build", "world"), [(fsdp, 2), (hsdp, 4), (data_parallel, 2)])
def test_the_gradients_are_those_without_a_scale_bit_for_bit(build: Callable[..., Built], world: int) -> None:
    methods = METHODS if build is fsdp else METHODS[1:2]
    assert run_ranks(world, _differences, build, methods) == [[]] * world


def _reduced_in_float16() -> str:
    model = sharded(MixedPrecisionPolicy(torch.float16, torch.float16))
    handle = cc.attach(model, reduce_scatter=cc.make("int8"))
    loss_of(model, batch(dist.get_rank(), 0)).backward()
    handle.loss_scale = 1024
    try:
        (loss_of(model, batch(dist.get_rank(), 1)) * 1024).backward()
    except ValueError as error:
        return str(error)
    return ""


def test_float16_keeps_its_scale_or_is_refused() -> None:
    assert all("reduce_dtype=torch.float32" in said for said in run_ranks(2, _reduced_in_float16))


def _wrong_scales() -> int:
    handle = cc.attach(sharded(), reduce_scatter=cc.make("int8"))
    refused = 0
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        try:
            handle.loss_scale = scale
        except ValueError:
            refused += 1
    return refused


def test_a_scale_that_is_none_is_refused() -> None:
    assert run_ranks(2, _wrong_scales) == [4, 4]


def _as_documented(overflows: bool, fused: bool) -> dict[str, Any]:
    """The loop of docs/library/breadth.md in float16, with or without a step in which one rank's gradient overflows."""
    model = sharded(MixedPrecisionPolicy(torch.float16, torch.float32))
    handle = cc.attach(model, reduce_scatter=cc.make("topk", {"ratio": 0.2}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for step in (0, "overflow", 1, 2) if overflows else (0, 1, 2):
        handle.loss_scale = scale = scaler.get_scale()
        loss = loss_of(model, batch(dist.get_rank(), 7 if step == "overflow" else step))
        if step == "overflow" and dist.get_rank() == 1:
            loss = loss * 1e4
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(None if overflows or step != 0 else 2048.0)
        if scaler.get_scale() < scale and step != 0:
            handle.rollback()
        optimizer.zero_grad()
    assert scaler.get_scale() == 2048
    return {name: value.numpy() for name, value in full(model).items()}


@pytest.mark.parametrize("fused", [False, True])
def test_the_documented_loop_forgets_a_step_that_overflowed(fused: bool) -> None:
    with_one, without = (run_ranks(2, _as_documented, overflows, fused) for overflows in (True, False))
    for a, b in zip(with_one, without, strict=True):
        assert all((a[name] == b[name]).all() for name in a)
