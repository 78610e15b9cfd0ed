"""Ways of using FSDP2 that the other tests leave out: each works, or is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import comm_compress as cc
from tests.comm_compress.integrations.test_fsdp import (
    Net,
    _groups,
    batch,
    gradients,
    loss_of,
    serial_gradients,
    sharded,
    worst,
)
from tests.comm_compress.table import build, codec
from tests.distributed import run_ranks


def relative(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return worst(got, {k: expected[k] for k in got}) / max(float(g.abs().max()) for g in expected.values())


# ---- accumulation, dtypes, resharding, compilation ------------------------------------------------------------


def _accumulated(micros: int = 3) -> dict[str, Any]:
    """Every micro-batch reduced: feedback and the ledger tick with each, and what is left over is not lost."""
    seen: dict[str, Any] = {}
    for name, config in (("identity", {}), ("topk", {"ratio": 0.3})):
        for last_only in (True, False):
            model = sharded()
            handle = cc.attach(model, reduce_scatter=build(name, config))
            for micro in range(micros):
                model.set_requires_gradient_sync(not last_only or micro == micros - 1)
                loss_of(model, batch(dist.get_rank(), micro)).backward()
            got = gradients(model)
            states = handle.state_dict()
            seen[f"{name} {last_only}"] = {
                "calls": handle.ledger.totals().calls,
                "gradients": {k: v.numpy() for k, v in got.items()},
                "residuals": {k: v["tensors"]["residual"].numpy() for k, v in states.items() if name == "topk"},
                "layouts": {k: v["layouts"][""] for k, v in states.items()},
            }
    return seen


def test_accumulation_both_ways_loses_nothing() -> None:
    from comm_compress.core.segments import segments_of, unflatten

    world, micros = 3, 3
    results = run_ranks(world, _accumulated)
    expected = [serial_gradients(world, micro) for micro in range(micros)]
    total = {k: sum(e[k] for e in expected) for k in expected[0]}
    for last_only in (True, False):
        exact = [r[f"identity {last_only}"] for r in results]
        for run in exact:
            assert run["calls"] == 4 * (1 if last_only else micros)
            assert relative({k: torch.from_numpy(v) for k, v in run["gradients"].items()}, total) < 1e-5  # type: ignore[arg-type]
        runs = [r[f"topk {last_only}"] for r in results]
        for key, layout in runs[0]["layouts"].items():
            segments = segments_of([(n, tuple(s)) for n, s in layout], world)
            left = torch.stack([torch.from_numpy(r["residuals"][key]) for r in runs]).sum(0) / world
            for segment, rest in zip(segments, unflatten(left, segments), strict=True):
                sent = torch.from_numpy(runs[0]["gradients"][segment.name])
                whole = total[segment.name]
                assert isinstance(whole, Tensor)
                torch.testing.assert_close(sent + rest, whole, rtol=1e-4, atol=1e-6)
                assert segment.name.endswith("bias") or float(rest.abs().max()) > 0


def _variants() -> dict[str, float]:
    seen = {}
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh, reference = init_device_mesh("cpu", (world,)), serial_gradients(dist.get_world_size())
    for name, reduce_dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        for method in ("identity", "int8"):
            model = sharded(MixedPrecisionPolicy(torch.float32, reduce_dtype))
            cc.attach(model, reduce_scatter=cc.make(method), all_gather=cc.make("identity"))
            loss_of(model, batch(rank, 0)).backward()
            seen[f"{name} {method}"] = relative(gradients(model), reference)
    for reshard in (True, False, 2):
        model = Net()
        for block in [*model.blocks, model.branch]:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        handle = cc.attach(model, reduce_scatter=cc.make("identity"), all_gather=cc.make("identity"))
        loss_of(model, batch(rank, 0)).backward()
        seen[f"reshard {reshard}"] = relative(gradients(model), reference)
        seen[f"gathers {reshard}"] = handle.ledger.totals("all_gather").calls
    rounded = []
    for reshard in (True, 2):
        model = Net()
        for block in [*model.blocks, model.branch]:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh)
        cc.attach(model, all_gather=build("int8", {"block_size": 8, "layers": {"*bias": "bf16"}}))
        loss_of(model, batch(rank, 0)).backward()
        rounded.append(gradients(model))
    seen["reshard 2 rounds once"] = worst(*rounded)
    seen["int8 parameters"] = relative(rounded[0], reference)
    model = sharded()
    for module in model.modules():
        if hasattr(module, "_set_unshard_async_op"):
            module._set_unshard_async_op(True)
    cc.attach(model, reduce_scatter=cc.make("identity"), all_gather=cc.make("identity"))
    loss_of(model, batch(rank, 0)).backward()
    seen["asynchronous gathers"] = relative(gradients(model), reference)
    return seen


def test_dtypes_and_resharding() -> None:
    for seen in run_ranks(4, _variants):
        for name, bound in {
            "fp32 identity": 1e-6, "fp32 int8": 2e-2, "bf16 identity": 2e-2, "bf16 int8": 4e-2, "fp16 identity": 2e-3,
            "fp16 int8": 2e-2, "reshard True": 1e-6, "reshard False": 1e-6, "reshard 2": 1e-6,
             "asynchronous gathers": 1e-6,
        }.items():  # fmt: skip
            assert seen[name] < bound, name
        assert seen["reshard 2 rounds once"] == 0
        assert 0 < seen["int8 parameters"] < 0.1
        assert seen["gathers True"] == 2 * seen["gathers False"] == seen["gathers 2"] == 8


def _compiled() -> dict[str, float]:
    seen = {}
    rank, reference = dist.get_rank(), serial_gradients(dist.get_world_size())
    for whole in (False, True):
        model = sharded()
        handle = cc.attach(model, reduce_scatter=cc.make("identity"), all_gather=cc.make("identity"))
        if whole:
            model.compile(backend="aot_eager")
        else:
            for block in model.blocks:
                block.compile(backend="aot_eager")
        for _ in range(2):
            model.zero_grad()
            loss_of(model, batch(rank, 0)).backward()
        seen[f"compiled {whole}"] = relative(gradients(model), reference)
        seen[f"compiled calls {whole}"] = handle.ledger.totals("reduce_scatter").calls
    return seen


def test_compiled_blocks_and_models() -> None:
    for seen in run_ranks(2, _compiled):
        for whole in (False, True):
            assert seen[f"compiled {whole}"] < 1e-6
            assert seen[f"compiled calls {whole}"] == 8


# ---- frozen and unused parameters, dtypes, groups, one rank -----------------------------------------------------


class Adapted(nn.Module):
    """LoRA-like: frozen weights with small trainable ones between them, in one unit; and a unit all frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.base = nn.Linear(6, 6)
        self.down = nn.Linear(6, 2, bias=False)
        self.up = nn.Linear(2, 6, bias=False)
        self.last = nn.Linear(6, 6)
        self.base.requires_grad_(False)
        self.last.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.base(x)) + self.up(self.down(x)))


def _frozen() -> dict[str, Any]:
    rank, seen = dist.get_rank(), {}
    x = [torch.randn(4, 6, generator=torch.Generator().manual_seed(r)) for r in range(dist.get_world_size())]
    serial = Adapted()
    for part in x:
        (serial(part).square().sum() / len(x)).backward()
    expected = {n: p.grad for n, p in serial.named_parameters() if p.grad is not None}
    for name, config in (
        ("identity", {}),
        ("identity", {"layers": {"down.*": "identity"}}),
        ("topk", {"ratio": 0.5, "layers": {"up.*": {"method": "int8"}, "base.*": {"method": "topk", "k": 1}}}),
    ):
        model, mesh = Adapted(), init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model.last, mesh=mesh)
        fully_shard(model, mesh=mesh)
        handle = cc.attach(model, reduce_scatter=build(name, config), all_gather=cc.make("identity"))
        model(x[rank]).square().sum().backward()
        seen[f"{name} {sorted(config)}"] = relative(gradients(model), expected)
        saved = handle.state_dict()
        seen["trainable only"] = [n for n, _ in saved["reduce_scatter/root"]["layouts"][""]] == [
            "down.weight",
            "up.weight",
        ]
        seen["all gathered"] = len(saved["all_gather/root"]["layouts"][""])
        seen["never reduced"] = int(saved["reduce_scatter/last"]["tensors"]["tick"])
    # thawed later, the rows follow: each layer's method has its own state, but one residual of all has another shape
    for name, config in (("layers", {"layers": {"base.*": "int8"}}), ("one residual", {})):
        model = fully_shard(Adapted(), mesh=mesh)
        cc.attach(model, reduce_scatter=build("topk", config))
        model(x[rank]).square().sum().backward()
        model.base.requires_grad_(True)
        try:
            model(x[rank]).square().sum().backward()
            seen[f"thawed {name}"] = "worked"
        except ValueError as e:
            seen[f"thawed {name}"] = str(e)
    return seen


def test_frozen_parameters_are_gathered_and_not_reduced() -> None:
    for seen in run_ranks(3, _frozen):
        assert seen["identity []"] < 1e-6
        assert seen["identity ['layers']"] < 1e-6
        assert 0 < seen["topk ['layers', 'ratio']"] < 1
        assert seen["trainable only"]
        assert seen["all gathered"] == 4
        assert seen["never reduced"] == 0
        assert seen["thawed layers"] == "worked"
        assert "parameters with a gradient has changed" in seen["thawed one residual"]


class TwoKinds(nn.Module):
    """A float32 and a bfloat16 parameter in one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.b.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).bfloat16())


def _several_dtypes() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    mixed = fully_shard(TwoKinds(), mesh=mesh)
    with pytest.raises(ValueError, match="several dtypes") as caught:
        cc.attach(mixed, all_gather=cc.make("int8"))
    seen["refused"] = str(caught.value)
    handle = cc.attach(mixed, reduce_scatter=codec("int8", {}))
    mixed(torch.ones(2, 4)).float().sum().backward()
    seen["gradients"] = handle.ledger.totals("reduce_scatter").calls
    cast = fully_shard(TwoKinds(), mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    handle = cc.attach(cast, all_gather=cc.make("int8"))
    cast(torch.ones(2, 4)).float().sum().backward()
    seen["cast"] = handle.ledger.totals("all_gather").calls
    return seen


def _several_groups() -> dict[str, Any]:
    """torch 2.13: one module's parameters over two meshes (expert parallelism)."""
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
    except ImportError:
        return {}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    wide, narrow = FSDPMeshInfo(init_device_mesh("cpu", (4,)), 0), FSDPMeshInfo(mesh["b"], 0)
    seen: dict[str, Any] = {}
    results = []
    for compressed in (False, True):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        few = set(model[2].parameters())
        fully_shard(
            model,
            mesh=wide.mesh,
            shard_placement_fn=lambda p, few=few: ShardPlacementResult(
                Shard(p.dim() - 1 if p in few else 0), narrow if p in few else wide
            ),
        )
        if compressed:  # the second group's rows are not dim-0 chunks
            with pytest.raises(ValueError, match="not sharded over dim 0"):
                cc.attach(model, reduce_scatter=cc.make("int8", {"layers": {"*bias": "identity"}}))
        if compressed:
            handle = cc.attach(model, reduce_scatter=cc.make("identity"), all_gather=cc.make("identity"))
            seen["units"] = sorted(handle.state_dict())
            seen["worlds"] = sorted({v["world"] for v in handle.state_dict().values()})
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
        model(x).square().sum().backward()
        results.append(gradients(model))
    seen["error"] = relative(results[1], results[0])
    return seen


def test_several_dtypes_and_several_groups_in_a_unit() -> None:
    for seen in run_ranks(2, _several_dtypes):
        assert "param_dtype" in seen["refused"]
        assert seen["gradients"] == 1
        assert seen["cast"] >= 1
    for seen in run_ranks(4, _several_groups):
        if seen:
            assert seen["units"] == [f"{op}/root[{i}]" for op in ("all_gather", "reduce_scatter") for i in (0, 1)]
            assert seen["worlds"] == [2, 4]
            assert seen["error"] < 1e-6


def _one_rank() -> dict[str, Any]:
    """FSDP2 calls no hook; a divide factor must still divide once."""
    found = []
    for compressed in (False, True):
        model = sharded()
        for _, group in _groups(model):
            group.gradient_divide_factor = 4.0
        handle = cc.attach(
            model, **({"reduce_scatter": cc.make("topk"), "all_gather": cc.make("int8")} if compressed else {})
        )
        loss_of(model, batch(0, 0)).backward()
        found.append(gradients(model))
    return {"error": worst(*found), "calls": handle.ledger.totals().calls}


def test_one_rank_is_stock_also_with_a_divide_factor() -> None:
    assert run_ranks(1, _one_rank) == [{"error": 0, "calls": 0}]


def _unused() -> dict[str, Any]:
    """A parameter that no forward of the step uses: the rows keep their size, and its residual still goes out."""
    seen: dict[str, Any] = {}
    model, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    handle = cc.attach(model, reduce_scatter=build("topk", {"ratio": 0.2, "layers": {"head.*": "identity"}}))
    for step in range(4):
        loss_of(model, batch(dist.get_rank(), step), branch=step % 2 == 0).backward()
    branch = gradients(model)["branch.weight"]
    seen["finite"] = bool(torch.isfinite(branch).all())
    seen["calls"] = handle.ledger.totals().calls
    seen["parameters"] = len(handle.state_dict()["reduce_scatter/root"]["layouts"][""])
    return seen


@pytest.mark.skipif(torch.__version__ < "2.13", reason="absent from rows before torch 2.13 (docs/library/breadth.md)")
def test_unused_parameters_are_reduced_as_zeros() -> None:
    for seen in run_ranks(2, _unused):
        assert seen == {"finite": True, "calls": 4, "parameters": len(dict(Net().named_parameters()))}


def _together() -> dict[str, Any]:
    """`fully_shard` of a list makes one unit of several modules."""
    model, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard([model.branch, model.head], mesh=mesh)
    fully_shard(model, mesh=mesh)
    handle = cc.attach(model, reduce_scatter="topk ratio=0.2", all_gather="identity")
    for step in range(2):
        loss_of(model, batch(dist.get_rank(), step)).backward()
    saved = handle.state_dict()
    return {
        "states": {key: int(entry["tensors"]["tick"]) for key, entry in saved.items() if key.startswith("reduce")},
        "counted": sorted(key for key in handle.ledger.state_dict()),
        "parameters": [name for name, _ in saved["reduce_scatter/branch+head"]["layouts"][""]],
    }


def test_modules_sharded_together_are_one_unit() -> None:
    for seen in run_ranks(2, _together):
        assert seen["states"] == {"reduce_scatter/root": 2, "reduce_scatter/branch+head": 2}
        assert seen["counted"] == [
            f"{op}/{u}" for op in ("all_gather", "reduce_scatter") for u in ("branch+head", "root")
        ]
        assert seen["parameters"] == ["branch.weight", "head.weight", "head.bias"]
