"""Reduce-scatters behind the rest of backward, on a CPU: the same bits and bytes, where nobody looks earlier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import comm_compress as cc
from comm_compress.integrations.fsdp.overlap import Reductions
from tests.comm_compress.integrations.test_fsdp import (
    ONE_OF_EACH,
    SEEING_MORE,
    Net,
    _groups,
    batch,
    gradients,
    loss_of,
    sharded,
    worst,
)
from tests.comm_compress.table import build
from tests.comm_compress.table_rows import Rows
from tests.distributed import run_ranks


class Watched:
    """Counts, while it is open, how many reductions were under way when each of the deferred ones had begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way: list[int] = []
        add = Reductions.add

        def counted(reductions: Reductions, finish: Callable[[], None]) -> None:
            add(reductions, finish)
            self.under_way.append(len(reductions._under_way))

        monkeypatch.setattr(Reductions, "add", counted)


def _gradients(model: Net, overlap: int, method: Any, gather: str) -> tuple[list[Tensor], int]:
    """This rank's gradients of two steps whose weights stay, and the bytes that they sent."""
    handle = cc.attach(
        model, reduce_scatter=build(*method), all_gather=cc.make(gather), prefetch=1, overlap_reduce=overlap, seed=3
    )
    found: list[Tensor] = []
    for step in range(2):
        model.zero_grad()
        handle.step_ended()
        loss_of(model, batch(dist.get_rank(), step)).backward()
        found += [p.grad.to_local().clone() for p in model.parameters() if p.grad is not None]  # type: ignore[attr-defined]
    handle.detach()
    return found, handle.ledger.totals().sent_bytes


def _differences(table: Rows) -> list[str]:
    wrong, model = [], sharded()
    for number, method in enumerate(table):
        gather, overlap = ("delta", "int8", "none")[number % 3], 1 + number % 3
        waiting, sent = _gradients(model, 0, method, gather)
        under_way, sent_too = _gradients(model, overlap, method, gather)
        if sent != sent_too or not all(map(torch.equal, waiting, under_way)):
            wrong.append(f"{method}, overlap {overlap}: bytes {sent}, {sent_too}")
    return wrong


def test_no_bit_and_no_byte_of_any_method_changes() -> None:
    assert run_ranks(2, _differences, ONE_OF_EACH + SEEING_MORE) == [[]] * 2


# ---- where it happens, and where FSDP2 looks at the sum at once -------------------------------------------------


def _net(**options: Any) -> Net:
    model, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in [*model.blocks, model.branch, model]:
        fully_shard(unit, mesh=mesh, **options)
    return model


def _plain(model: Net) -> None:
    loss_of(model, batch(dist.get_rank(), 0)).backward()


def _added_to(model: Net) -> None:
    for step in range(2):
        loss_of(model, batch(dist.get_rank(), step)).backward()


def _reduced_once(model: Net) -> None:
    for step in range(2):
        model.set_requires_gradient_sync(step == 1)  # type: ignore[attr-defined]
        loss_of(model, batch(dist.get_rank(), step)).backward()


def _not_the_last(model: Net) -> None:
    model.set_is_last_backward(False)  # type: ignore[attr-defined]
    _plain(model)


def _divided(model: Net) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(7.0)
    _plain(model)


def _with_a_hook(model: Net) -> None:
    def scale(parameter: Any) -> None:
        parameter.grad.mul_(3)

    model.blocks[0].weight.register_post_accumulate_grad_hook(scale)  # type: ignore[union-attr, operator]
    _plain(model)


def _by_hand(model: Net) -> None:
    """As torch's pipelines do: units reduce outside of any backward."""
    model.set_requires_gradient_sync(False)  # type: ignore[attr-defined]
    _plain(model)
    model.set_requires_gradient_sync(True)  # type: ignore[attr-defined]
    for _, group in _groups(model):
        group.post_backward()


def _recomputed(reentrant: bool) -> Callable[[Net], None]:
    def run(model: Net) -> None:
        for block in model.blocks:
            forward = block.forward

            def again(x: Tensor, forward: Any = forward) -> Any:
                return checkpoint(forward, x, use_reentrant=reentrant)

            block.forward = again
        _plain(model)

    return run


HALF = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)
CASES: dict[str, tuple[Callable[[Net], None], dict[str, Any], list[int]]] = {
    # what runs, fully_shard's options, and how many were under way when each unit's reduction had begun
    "plain": (_plain, {}, [1, 2, 2, 2]),
    "added to": (_added_to, {}, [1, 2, 2, 2]),  # the second backward waits for each
    "reduced once": (_reduced_once, {}, [1, 2, 2, 2]),
    "not the last": (_not_the_last, {}, [1, 2, 2, 2]),
    "divided by another factor": (_divided, {}, [1, 2, 2, 2]),
    "with a hook": (_with_a_hook, {}, [1, 2, 1]),  # the third unit's parameter has it
    "outside of backward": (_by_hand, {}, []),
    "recomputed": (_recomputed(False), {}, [1, 2, 2, 2]),
    "recomputed, reentrant": (_recomputed(True), {}, [1, 2, 2, 2]),
    "cast": (_plain, {"mp_policy": HALF}, []),
    "offloaded": (_plain, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, []),
}


def _cases() -> dict[str, tuple[float, list[int], int]]:
    seen = {}
    for name, (run, options, _) in CASES.items():
        results = []
        for overlap in (0, 2):
            model = _net(**options)
            with pytest.MonkeyPatch.context() as patch:
                watched = Watched(patch)
                handle = cc.attach(model, reduce_scatter="int8 block_size=8", prefetch=0, overlap_reduce=overlap)
                run(model)
            results.append((gradients(model), watched.under_way, len(handle.workspaces._all)))
        seen[name] = (worst(results[0][0], results[1][0]), results[1][1], results[1][2])
        assert results[0][1:] == ([], 1), name
    return seen


def test_it_is_left_out_where_fsdp2_needs_the_sum_at_once() -> None:
    for seen in run_ranks(2, _cases):
        assert {name: under_way for name, (_, under_way, _) in seen.items()} == {
            name: expected for name, (_, _, expected) in CASES.items()
        }
        assert {name: worst for name, (worst, _, _) in seen.items()} == dict.fromkeys(CASES, 0)
        assert max(workspaces for _, _, workspaces in seen.values()) == 2


# ---- what an exception leaves -----------------------------------------------------------------------------------


def _raising(overlap: int) -> tuple[dict[str, Tensor], str]:
    model = sharded()
    handle = cc.attach(model, reduce_scatter="int8 block_size=8", overlap_reduce=overlap)
    message = ""

    def fail(gradient: Tensor) -> Tensor:
        raise ZeroDivisionError("in backward")

    def raising(module: nn.Module, inputs: Any, output: Tensor) -> None:
        output.register_hook(fail)

    hook = model.embed.register_forward_hook(raising)
    try:
        loss_of(model, batch(dist.get_rank(), 0)).backward()
    except ZeroDivisionError as e:
        message = str(e)
    hook.remove()
    handle.rollback()
    model.zero_grad()
    model.reset_iter_state()  # type: ignore[operator]
    loss_of(model, batch(dist.get_rank(), 1)).backward()
    result = gradients(model)
    handle.detach()
    return result, message


def _after_an_exception() -> tuple[float, str]:
    (waiting, _), (under_way, message) = _raising(0), _raising(2)
    return worst(waiting, under_way), message


@pytest.mark.skipif(not hasattr(FSDPModule, "reset_iter_state"), reason="before torch 2.13 FSDP2 cannot either")
def test_training_goes_on_after_an_exception_in_backward() -> None:
    assert run_ranks(2, _after_an_exception) == [(0, "in backward")] * 2


def test_after_an_error_nothing_else_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[int] = []
    reductions = Reductions(4)

    def ends(number: int) -> Callable[[], None]:
        def finish() -> None:
            finished.append(number)
            if number == 1:
                raise RuntimeError("connection reset")

        return finish

    monkeypatch.setattr("comm_compress.integrations.fsdp._compat.when_backward_ends", lambda callback: None)
    for number in range(4):
        reductions.add(ends(number))
    with pytest.raises(RuntimeError, match="connection reset"):
        reductions.finish()
    reductions.finish()
    assert finished == [0, 1]


def test_less_than_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"overlap_reduce = -1: must be 0 \(none\) or positive"):
        cc.attach(nn.Linear(2, 2), reduce_scatter="int8", overlap_reduce=-1)
