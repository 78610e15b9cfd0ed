"""`attach` on real FSDP2 models, over real gloo ranks."""

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
from comm_compress.core.segments import flatten, unflatten
from comm_compress.drive import simulate
from comm_compress.integrations.fsdp._compat import param_groups
from tests.comm_compress.table import TABLE, build, codec
from tests.comm_compress.table_rows import Rows
from tests.distributed import run_ranks

WORLDS = pytest.mark.parametrize("world", [2, 3, 4])


class Net(nn.Module):
    """Odd sizes everywhere; a bias shorter than four ranks; a branch that can be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(13, 5)
        self.blocks = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5, bias=False)])
        self.branch = nn.Linear(5, 5, bias=False)
        self.head = nn.Linear(5, 3)
        self.nan_in_backward = False

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        h = self.embed(x)
        if self.nan_in_backward:
            h.register_hook(lambda gradient: gradient * float("nan"))
        for block in self.blocks:
            h = h + torch.tanh(block(h))
        return self.head(h + self.branch(h) if branch else h)


def sharded(mixed: MixedPrecisionPolicy | None = None) -> Net:
    model, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
    options = {"mp_policy": mixed} if mixed else {}
    for block in [*model.blocks, model.branch]:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def batch(rank: int, step: int) -> Tensor:
    return torch.randint(13, (4, 6), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: nn.Module, x: Tensor, **options: Any) -> Tensor:
    return model(x, **options).float().square().mean()


def full(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().full_tensor().clone() for name, p in model.named_parameters()}  # type: ignore[attr-defined]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.named_parameters()}
    return {name: g.full_tensor() for name, g in found.items() if g is not None}  # type: ignore[attr-defined]


def train(model: nn.Module, steps: int = 3, first: int = 0) -> dict[str, Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(first, first + steps):
        loss_of(model, batch(dist.get_rank(), step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return full(model)


def local_gradients(rank: int) -> dict[str, Tensor]:
    model = Net()
    loss_of(model, batch(rank, 0)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def serial_gradients(world: int, step: int = 0) -> dict[str, Tensor]:
    model = Net()
    for rank in range(world):
        (loss_of(model, batch(rank, step)) / world).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def worst(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[k].float() - b[k].float()).abs().max()) for k in a)


# ---- identity is stock ----------------------------------------------------------------------------------------


def _identity_against_stock() -> list[float]:
    distances = []
    for mixed in (
        None,
        MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16),
    ):
        stock = train(sharded(mixed))
        model = sharded(mixed)
        cc.attach(model, reduce_scatter=cc.make("identity"), all_gather=cc.make("identity"))
        distances.append(worst(train(model), stock))
    return distances


@WORLDS
def test_identity_trains_like_stock_fsdp2(world: int) -> None:
    for distances in run_ranks(world, _identity_against_stock):
        if world == 2:
            assert distances == [0, 0, 0], "bit for bit"
        else:
            assert max(distances[:2]) < 1e-5
            assert distances[2] < 0.1, "stock rounds the bf16 sum at every hop, identity once"


def _none() -> bool:
    model = sharded()
    before = [(type(g._reduce_scatter_comm), type(g._all_gather_comm)) for _, g in _groups(model)]
    handle = cc.attach(model, reduce_scatter=cc.make("none"), all_gather=cc.make("none"))
    after = [(type(g._reduce_scatter_comm), type(g._all_gather_comm)) for _, g in _groups(model)]
    train(model, 1)
    return before == after and handle.ledger.totals() == cc.Totals()


def _groups(model: nn.Module) -> list[tuple[str, Any]]:
    return [(n, g) for n, m in model.named_modules() if hasattr(m, "unshard") for g in param_groups(m)]


def test_none_registers_no_hook() -> None:
    assert run_ranks(2, _none) == [True, True]


# ---- every method's gradient ----------------------------------------------------------------------------------


def _first_gradients(table: Rows) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    units: dict[str, Any] = {}
    model = sharded()
    for name, config in table:
        model.zero_grad()
        handle = cc.attach(model, reduce_scatter=build(name, config), seed=5)
        loss_of(model, batch(dist.get_rank(), 0)).backward()
        sent = handle.ledger.totals().sent_bytes
        rows.append({"gradients": {k: v.numpy() for k, v in gradients(model).items()}, "sent": sent})
        units = {g._reduce_scatter_comm.state.unit: g._reduce_scatter_comm.state.segments for _, g in _groups(model)}
        handle.detach()
    return units, rows


GRADIENT_TABLE: Rows = [(name, config) for name, config in TABLE if build(name, config).traits.for_gradients]
ONE_OF_EACH: Rows = [(name, config) for name, config in GRADIENT_TABLE if not config]
# what sees more than a row of numbers: the parameters in it, other ranks' rounds, a wrapper's parts
OF_SEGMENTS = {"powersgd", "lowrank", "ecsq", "sketch", "gradiveq", "dgc"}
IN_ROUNDS_OR_PARTS = {"scale", "mode", "min_numel", "layers", "entropy", "warmup_steps"}
SEEING_MORE: Rows = [
    (name, config)
    for name, config in GRADIENT_TABLE
    if config and (name in OF_SEGMENTS or IN_ROUNDS_OR_PARTS & config.keys())
]
SOME: Rows = [
    (name, config) for name, config in ONE_OF_EACH if name in OF_SEGMENTS | {"identity", "int8", "qsgd", "topk"}
]


@pytest.mark.parametrize(
    ("world", "table"),
    [(2, SOME), (3, ONE_OF_EACH + SEEING_MORE), (4, SOME)],
    ids=["2", "3-more", "4"],
)
def test_the_gradient_of_every_method_is_that_of_virtual_ranks(world: int, table: Rows) -> None:
    """Which also shows that units, rows and segments are what `segments` says they are.

    Three ranks, where sizes divide worst, try every method, and every setting of what sees more than a row; two and
    four, where a bias is shorter than the ranks are many, what sees more and some of the others (two ranks and every
    method: test_overlap.py). The settings of codecs, which do not, are in the conformance tests: there two and three
    ranks send any setting's numbers and bytes, without FSDP2.
    """
    reference, local = serial_gradients(world), [local_gradients(rank) for rank in range(world)]
    results = run_ranks(world, _first_gradients, table)
    units = results[0][0]
    assert {s.name for segments in units.values() for s in segments} == reference.keys()
    for row, (name, config) in enumerate(table):
        sent = [0] * world
        expected: dict[str, Tensor] = {}
        for unit, segments in units.items():
            inputs = [flatten([g[s.name] for s in segments], world) for g in local]
            states = simulate.states(world, unit, seed=5, segments=segments)
            method = build(name, config)
            rounds = [method.reduce_scatter(x, s) for x, s in zip(inputs, states, strict=True)]
            outcome = simulate.lockstep(rounds)
            means = torch.stack([r.total for r in outcome.results]) / world
            expected |= dict(zip([s.name for s in segments], unflatten(means, segments), strict=True))
            sent = [a + b.total for a, b in zip(sent, outcome.sent, strict=True)]
        for rank, (_, result) in enumerate(results):
            got = {k: torch.from_numpy(v) for k, v in result[row]["gradients"].items()}
            assert worst(got, expected) < 1e-5, (name, config)
            assert result[row]["sent"] == sent[rank], (name, config)
        if build(name, config).traits.lossless:
            assert worst(expected, reference) < 1e-6


# ---- parameters -----------------------------------------------------------------------------------------------


def _gathered(name: str) -> tuple[dict[str, Any], float]:
    model = sharded()
    exact = full(model)
    handle = cc.attach(model, all_gather=cc.make(name))
    model.unshard()
    seen = {k: p.detach().clone() for k, p in model.named_parameters() if not k.startswith(("blocks", "branch"))}
    model.reshard()
    with handle.exact():
        before = handle.ledger.totals()
        model.unshard()
        same = {k: p.detach().clone() for k, p in model.named_parameters() if not k.startswith(("blocks", "branch"))}
        model.reshard()
        assert handle.ledger.totals() == before, "exact gathers are not entered"
    assert worst(same, {k: exact[k] for k in same}) == 0
    return {k: v.numpy() for k, v in seen.items()}, worst(seen, {k: exact[k] for k in seen})


BOUNDS = {"identity": 0, "bf16": 1e-2, "fp16": 2e-3, "int8": 2e-2}


def _gathered_by_all() -> list[tuple[dict[str, Any], float]]:
    return [_gathered(name) for name in BOUNDS]


@WORLDS
def test_every_rank_sees_the_same_gathered_parameters(world: int) -> None:
    results = run_ranks(world, _gathered_by_all)
    for row, (name, bound) in enumerate(BOUNDS.items()):
        for rank in range(world):
            seen, error = results[rank][row]
            assert error <= bound, name
            assert error > 0 or name == "identity"
            assert all((seen[k] == results[0][row][0][k]).all() for k in seen), name


# ---- bytes ----------------------------------------------------------------------------------------------------


def _bytes() -> tuple[int, int, int, int]:
    model = sharded()
    compressor = codec("int8", {"block_size": 32})
    handle = cc.attach(model, reduce_scatter=compressor, all_gather=compressor)
    train(model, 2)
    expected_rows = 0
    for _, group in _groups(model):
        n = sum(p.padded_sharded_param_size.numel() for p in group.fsdp_params)
        expected_rows += 2 * compressor.layout(n, torch.float32).row_bytes
    rs, ag = handle.ledger.totals("reduce_scatter"), handle.ledger.totals("all_gather")
    assert rs.encode_ms > 0
    assert rs.wire_ms > 0
    assert rs.decode_ms > 0
    return rs.sent_bytes, expected_rows, ag.sent_bytes, rs.calls


@WORLDS
def test_the_ledger_counts_rows_sent_to_other_ranks(world: int) -> None:
    for rs, rows, ag, calls in run_ranks(world, _bytes):
        assert rs == rows * (world - 1)
        assert calls == 2 * 4  # steps x units
        assert rows * (world - 1) < ag <= 2 * rows * (world - 1), "the root is gathered once a step, blocks twice"


# ---- NaN ------------------------------------------------------------------------------------------------------


def _nan_step(name: str, config: dict[str, Any]) -> tuple[bool, bool, int, bool]:
    model = sharded()
    handle = cc.attach(model, reduce_scatter=build(name, config))
    loss_of(model, batch(dist.get_rank(), 0)).backward()
    before = {k: {n: t.clone() for n, t in v["tensors"].items()} for k, v in handle.state_dict().items()}
    model.zero_grad()
    model.nan_in_backward = dist.get_rank() == 1
    loss_of(model, batch(dist.get_rank(), 1)).backward()
    finite = all(bool(torch.isfinite(p.grad.to_local()).all()) for p in model.parameters() if p.grad is not None)  # type: ignore[union-attr]
    embed = model.embed.weight.grad
    assert embed is not None
    seen_here = not bool(torch.isfinite(embed.to_local()).all())  # type: ignore[attr-defined]
    handle.rollback()
    after = {k: v["tensors"] for k, v in handle.state_dict().items()}
    untouched = all(torch.equal(after[k][n], before[k][n]) for k in before for n in before[k])
    return finite, seen_here, handle.ledger.totals().nonfinite_inputs, untouched


WITH_NAN: Rows = [TABLE[row] for row in (0, 3, 5, 6, 9)]


def _nan_steps() -> list[tuple[bool, bool, int, bool]]:
    return [_nan_step(name, config) for name, config in WITH_NAN]


@pytest.mark.parametrize("world", [2, 3])
def test_a_nan_on_one_rank_is_seen_on_all_and_remembered_by_none(world: int) -> None:
    for rank, found in enumerate(run_ranks(world, _nan_steps)):
        for method, (finite, seen, nonfinite_inputs, untouched) in zip(WITH_NAN, found, strict=True):
            assert not finite, method
            assert seen, method
            assert untouched, method
            assert (nonfinite_inputs > 0) == (rank == 1), "the ledger says whose input it was"


# ---- accumulation, unused parameters, resume, detach -----------------------------------------------------------


def _accumulated() -> tuple[int, dict[str, Any]]:
    model = sharded()
    handle = cc.attach(model, reduce_scatter=cc.make("identity"))
    for micro in range(2):
        model.set_requires_gradient_sync(micro == 1)
        (loss_of(model, batch(dist.get_rank(), micro)) / 2).backward()
    return handle.ledger.totals("reduce_scatter").calls, {k: v.numpy() for k, v in gradients(model).items()}


def test_accumulated_gradients_are_compressed_once() -> None:
    a, b = serial_gradients(2, 0), serial_gradients(2, 1)
    for calls, got in run_ranks(2, _accumulated):
        assert calls == 4
        for k, v in got.items():
            torch.testing.assert_close(torch.from_numpy(v), (a[k] + b[k]) / 2)


def _unused() -> bool:
    model = sharded()
    cc.attach(model, reduce_scatter=cc.make("topk", {"ratio": 0.5}))
    for step in range(3):
        loss_of(model, batch(dist.get_rank(), step), branch=step != 1).backward()
    return all(bool(torch.isfinite(g).all()) for g in gradients(model).values())


def test_an_unused_unit_does_not_disturb_feedback() -> None:
    assert run_ranks(2, _unused) == [True, True]


def _resume() -> float:
    straight = sharded()
    first = cc.attach(straight, reduce_scatter=cc.make("topk", {"ratio": 0.2}))
    optimizer = torch.optim.SGD(straight.parameters(), lr=0.1)
    resumed = sharded()
    for step in range(4):
        if step == 2:
            resumed.load_state_dict(straight.state_dict())
            second = cc.attach(resumed, reduce_scatter=cc.make("topk", {"ratio": 0.2}))
            second.load_state_dict(copy.deepcopy(first.state_dict()))
        loss_of(straight, batch(dist.get_rank(), step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    resumed_optimizer = torch.optim.SGD(resumed.parameters(), lr=0.1)
    for step in (2, 3):
        loss_of(resumed, batch(dist.get_rank(), step)).backward()
        resumed_optimizer.step()
        resumed_optimizer.zero_grad()
    return worst(full(straight), full(resumed))


def test_state_carries_over_exactly() -> None:
    assert run_ranks(2, _resume) == [0, 0]


def _detach() -> float:
    stock = train(sharded())
    model = sharded()
    handle = cc.attach(model, reduce_scatter=cc.make("topk"), all_gather=cc.make("int8"))
    handle.detach()
    distance = worst(train(model), stock)
    cc.attach(model, reduce_scatter=cc.make("int8"))  # another may follow
    return distance


def test_detach_gives_stock_fsdp2_back() -> None:
    assert run_ranks(2, _detach) == [0, 0]


def _one_rank() -> int:
    model = sharded()
    handle = cc.attach(model, reduce_scatter=cc.make("topk"), all_gather=cc.make("int8"))
    train(model)
    return handle.ledger.totals().calls


def test_one_rank_trains_and_sends_nothing() -> None:
    assert run_ranks(1, _one_rank) == [0]


# ---- refusals -------------------------------------------------------------------------------------------------


def _refusals() -> list[str]:
    messages = []

    def refused(**methods: Any) -> None:
        try:
            cc.attach(sharded(), **methods)
        except ValueError as e:
            messages.append(str(e))

    refused(all_gather=cc.make("topk", {"error_feedback": False}))
    refused(all_gather=cc.make("int8", {"error_feedback": True}))
    refused(all_gather=cc.make("int8", {"scale": "global"}))
    model = sharded()
    cc.attach(model, reduce_scatter=cc.make("int8"))
    for again in (model, Net()):
        try:
            cc.attach(again, reduce_scatter=cc.make("int8"))
        except ValueError as e:
            messages.append(str(e))
    hsdp = Net()
    fully_shard(hsdp, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    try:
        cc.attach(hsdp, reduce_scatter=cc.make("int8"))
    except ValueError as e:
        messages.append(str(e))
    return messages


def test_what_cannot_work_is_refused_when_attached() -> None:
    messages = run_ranks(4, _refusals)[0]
    for message, word in zip(
        messages, ["topk", "error_feedback", "int8", "already", "fully_shard", "HSDP"], strict=True
    ):
        assert word in message


# ---- what no codec carries --------------------------------------------------------------------------------------


def _doubles() -> list[str]:
    said = []
    for how in ("reduce_scatter", "all_gather"):
        model = Net().double()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        try:
            cc.attach(model, **{how: cc.make("identity")})
        except ValueError as error:
            said.append(str(error))
    cast = Net().double()
    fully_shard(cast, mesh=init_device_mesh("cpu", (1,)), mp_policy=MixedPrecisionPolicy(torch.float32, torch.float32))
    cc.attach(cast, reduce_scatter=cc.make("identity"), all_gather=cc.make("identity"))
    return said


def test_float64_is_refused_by_name() -> None:
    (said,) = run_ranks(1, _doubles)
    assert [words.partition(":")[0] for words in said] == ["reduce_scatter", "all_gather"]
    assert all("'root' moves torch.float64" in words and "param_dtype" in words for words in said)
