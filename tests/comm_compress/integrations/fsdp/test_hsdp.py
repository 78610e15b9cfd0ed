"""Two hops: one method inside a shard group, another between replicas; 2 x 2 real ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import comm_compress as cc
from comm_compress.integrations.fsdp._compat import param_groups
from tests.comm_compress.integrations.test_fsdp import (
    Net,
    _groups,
    batch,
    full,
    gradients,
    loss_of,
    serial_gradients,
    worst,
)
from tests.comm_compress.table import codec
from tests.distributed import run_ranks

MIXED = MixedPrecisionPolicy(torch.float32, torch.bfloat16)
HALF = MixedPrecisionPolicy(torch.float32, torch.float16)


def replicated(mixed: MixedPrecisionPolicy | None = None, shape: tuple[int, int] = (2, 2)) -> Net:
    model, mesh = Net(), init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    options = {"mp_policy": mixed} if mixed else {}
    for block in [*model.blocks, model.branch]:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def hooked(model: nn.Module, between: str | None = "identity", inside: str | None = "identity", **options: Any) -> Any:
    made = {"reduce_scatter": inside, "all_reduce": between}
    return cc.attach(model, **{k: cc.make(v) if isinstance(v, str) else v for k, v in made.items()}, **options)


def train(model: nn.Module, micros: str = "one") -> dict[str, Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(3):
        for micro in range(1 if micros == "one" else 2):
            if micros == "no all-reduce until the last":
                model.set_requires_all_reduce(micro == 1)  # type: ignore[operator]
            if micros == "no reduction until the last":
                model.set_requires_gradient_sync(micro == 1)  # type: ignore[operator]
            loss_of(model, batch(dist.get_rank(), 10 * step + micro)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return full(model)


def first(model: nn.Module) -> dict[str, Tensor]:
    loss_of(model, batch(dist.get_rank(), 0)).backward()
    return gradients(model)


def _identity() -> dict[str, float]:
    seen = {}
    for micros in ("one", "reduced each time", "no all-reduce until the last", "no reduction until the last"):
        model = replicated()
        handle = hooked(model)
        seen[micros] = worst(train(model, micros), train(replicated(), micros))
        # 4 units, 3 steps
        per_step = handle.ledger.totals("all_reduce").calls // (3 * 4)
        assert per_step == (2 if micros == "reduced each time" else 1), micros
    for name, mixed in (("bf16", MIXED), ("fp16", HALF)):
        model = replicated(mixed)
        hooked(model)
        reference = serial_gradients(4)
        seen[name] = worst(first(model), reference) / max(float(g.abs().max()) for g in reference.values())
    only = replicated()
    cc.attach(only, all_reduce=cc.make("identity"))
    seen["all_reduce only"] = worst(train(only), train(replicated()))
    model = replicated()
    handle = hooked(model, "int8", "topk")
    handle.detach()
    seen["detached"] = worst(train(model), train(replicated()))
    factor, stock = replicated(), replicated()
    for unit in (factor, stock):
        for _, group in _groups(unit):
            group.gradient_divide_factor = 3.0
            group.force_sum_reduction_for_comms = True
    hooked(factor)
    seen["divide factor"] = worst(first(factor), first(stock))
    for shape in ((4, 1), (1, 4)):
        model = replicated(shape=shape)
        hooked(model)
        seen[str(shape)] = worst(train(model), train(replicated(shape=shape)))
    return seen


def test_identity_in_both_hops_is_stock_hsdp() -> None:
    for seen in run_ranks(4, _identity):
        half = {"bf16": seen.pop("bf16"), "fp16": seen.pop("fp16")}
        assert max(seen.values()) < 1e-5, seen
        assert half["bf16"] < 2e-2
        assert half["fp16"] < 2e-3


def _two_hops() -> dict[str, Any]:
    shard = dist.get_rank() % 2
    model = replicated()
    inside, between, back = codec("int8", {"block_size": 32}), codec("bf16", {}), codec("int8", {})
    handle = cc.attach(
        model, reduce_scatter=inside, all_gather=codec("bf16", {}), all_reduce=between, all_reduce_gather=back, seed=3
    )
    got = first(model)
    reference = serial_gradients(4)
    expected = dict.fromkeys(("reduce_scatter", "all_reduce"), 0)
    for _, group in _groups(model):
        n = sum(p.padded_sharded_param_size.numel() for p in group.fsdp_params)
        # between two replicas, each parameter's chunk is cut in two again
        half = sum(
            -(-p.padded_sharded_param_size[0] // 2) * p.padded_sharded_param_size[1:].numel() for p in group.fsdp_params
        )
        expected["reduce_scatter"] += inside.layout(n, torch.float32).row_bytes
        expected["all_reduce"] += between.layout(half, torch.float32).row_bytes
        expected["all_reduce"] += back.layout(half, torch.float32).row_bytes
    totals = {op: handle.ledger.totals(op) for op in expected}  # type: ignore[arg-type]
    size = max(float(g.abs().max()) for g in reference.values())
    return {
        "error": worst(got, reference) / size,
        "bytes": {op: t.sent_bytes for op, t in totals.items()} == expected,
        "extra": totals["all_reduce"].extra_collectives,
        "gradient": {k: v.numpy() for k, v in got.items()},
        "shard": shard,
    }


def test_two_hops_approximate_the_mean_and_count_their_bytes() -> None:
    results = run_ranks(4, _two_hops)
    for result in results:
        assert 0 < result["error"] < 0.03
        assert result["bytes"]
        assert result["extra"] == 0
        for k, v in result["gradient"].items():
            assert (v == results[0]["gradient"][k]).all(), "replicas have the same gradient, bit for bit"


def _remembered() -> dict[str, Any]:
    model = replicated()
    topk = cc.make("topk", {"ratio": 0.3})
    layered = cc.make("int8", {"layers": {"*.weight": {"method": "topk", "ratio": 0.5}}, "error_feedback": False})
    handle = cc.attach(model, reduce_scatter=cc.make("topk", {"ratio": 0.3}), all_reduce=topk)
    loss_of(model, batch(dist.get_rank(), 0)).backward()
    before = {k: {n: t.clone() for n, t in v["tensors"].items()} for k, v in handle.state_dict().items()}
    model.zero_grad()
    model.nan_in_backward = dist.get_rank() == 3
    loss_of(model, batch(dist.get_rank(), 1)).backward()
    embed = model.embed.weight.grad
    seen = embed is not None and not bool(torch.isfinite(embed.to_local()).all())  # type: ignore[attr-defined]
    handle.rollback()
    after = {k: v["tensors"] for k, v in handle.state_dict().items()}
    untouched = all(torch.equal(after[k][n], before[k][n]) for k in before for n in before[k])
    residuals = sum("residual" in v for k, v in after.items() if k.startswith("all_reduce/"))
    second = replicated()
    cc.attach(second, reduce_scatter=layered, all_reduce=layered)
    finite = all(bool(torch.isfinite(g).all()) for g in first(second).values())
    return {"seen": seen, "untouched": untouched, "residuals": residuals, "layers": finite}


def test_a_nan_reaches_every_replica_and_a_void_step_is_taken_back() -> None:
    for result in run_ranks(4, _remembered):
        assert result == {"seen": True, "untouched": True, "residuals": 4, "layers": True}


def _refusals() -> list[str]:
    messages = []

    def refused(model: nn.Module, **methods: Any) -> None:
        try:
            cc.attach(model, **methods)
        except ValueError as e:
            messages.append(str(e))

    flat = Net()
    fully_shard(flat, mesh=init_device_mesh("cpu", (4,)))
    refused(replicated(), reduce_scatter=cc.make("int8"))
    refused(flat, all_reduce=cc.make("int8"))
    refused(replicated(), all_reduce=cc.make("int8"), all_reduce_gather=cc.make("powersgd"))
    refused(flat, all_reduce_gather=cc.make("int8"))
    own = replicated()
    for _, group in _groups(own):
        group._all_reduce_hook = lambda reduced: None
    refused(own, all_reduce=cc.make("int8"))
    assert param_groups(own)[0]._is_hsdp  # type: ignore[arg-type]
    cc.attach(replicated(), all_gather=cc.make("int8"))  # gradients stay FSDP2's own in both hops
    return messages


def test_what_has_no_meaning_is_refused() -> None:
    words = [
        "without all_reduce",
        "no replicas",
        "powersgd with error feedback does not send",
        "second half",
        "already has an all-reduce hook",
    ]
    for message, word in zip(run_ranks(4, _refusals)[0], words, strict=True):
        assert word in message
