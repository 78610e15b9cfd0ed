"""The DDP hook against DDP's own hooks, and against the method's definition."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import comm_compress as cc
from comm_compress.core.rounds import AllReduce, sent_by
from comm_compress.core.segments import flatten, segments_of, unflatten
from comm_compress.drive import simulate
from comm_compress.integrations import ddp
from comm_compress.integrations.allreduce import all_reduce
from comm_compress.methods.identity import Identity, IdentityConfig
from tests.comm_compress.integrations.test_fsdp import Net, batch, loss_of, worst
from tests.comm_compress.table import build, codec
from tests.distributed import run_ranks

METHODS: list[tuple[str, dict[str, Any], str]] = [  # a method, its settings, and the method of the way back
    ("int8", {"block_size": 32}, "identity"),
    ("int8", {"scale": "global"}, "identity"),
    ("topk", {"ratio": 0.3}, "identity"),
    ("topk", {"ratio": 0.3}, "int8"),
    ("onebit", {}, "onebit"),  # with feedback both ways
    ("int8", {"layers": {"*.weight": {"method": "topk", "ratio": 0.2}}}, "identity"),
]


class Scaled(Net):
    """`Net` and a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        return super().forward(x, branch) * self.scale


def wrapped(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Scaled(), **options)


def steps(model: DistributedDataParallel, numbers: range = range(3), lr: float = 0.1) -> list[dict[str, Tensor]]:
    """The gradients of every step."""
    found, optimizer = [], torch.optim.SGD(model.parameters(), lr=lr)
    for step in numbers:
        optimizer.zero_grad()
        loss_of(model, batch(dist.get_rank(), step)).backward()
        found.append({n: p.grad.clone() for n, p in model.module.named_parameters() if p.grad is not None})
        optimizer.step()
    return found


def furthest(a: list[dict[str, Tensor]], b: list[dict[str, Tensor]]) -> float:
    return max(worst(x, y) for x, y in zip(a, b, strict=True))


def _against_torch() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    plain = wrapped()
    stock = steps(plain)
    size = max(float(g.abs().max()) for g in stock[0].values())
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}):
        model = wrapped(**options)
        handle = ddp.attach(model, codec("identity", {}))
        seen[f"identity {options}"] = furthest(steps(model), stock)
        assert handle.ledger.totals("all_reduce").calls >= 3
    hooks = {
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket),
    }
    for name, hook in hooks.items():  # under its own name DDP refuses the second on gloo
        theirs, ours = wrapped(), wrapped()
        theirs.register_comm_hook(None, hook)
        handle = ddp.attach(ours, codec(name, {}), codec(name, {}))
        a, b = steps(theirs), steps(ours)
        seen[name] = furthest(a[1:], b[1:]) / size  # the first step goes uncompressed here
        assert furthest(b[1:], stock[1:]) > 0
        first, rest = handle.ledger.totals().raw_bytes // 3, handle.ledger.totals().sent_bytes
        seen[f"{name} bytes"] = rest == first + first  # 4 bytes once, 2 bytes twice
    model = wrapped()
    handle = ddp.attach(model, codec("int8", {}))
    model.register_forward_hook(lambda *_: None)
    handle.detach()
    seen["detached"] = furthest(steps(model), stock)
    return seen


def test_identity_is_no_hook_and_casts_are_torchs_hooks() -> None:
    for world in (2, 3):
        for seen in run_ranks(world, _against_torch):
            for name, value in seen.items():
                if name.startswith("identity"):
                    assert value == 0 if world == 2 else value < 1e-6, name
            assert seen["fp16"] < 2e-3
            assert seen["bf16"] < 2e-2
            assert seen["fp16 bytes"]
            assert seen["bf16 bytes"]
            assert seen["detached"] < 1e-6


def _of_methods() -> list[dict[str, Any]]:
    results = []
    for name, config, back in METHODS:
        model = wrapped()
        handle = ddp.attach(model, build(name, config), all_gather=back, seed=5)
        found = steps(model, range(1, 4), lr=0)
        layouts = {k: e["layouts"][""] for k, e in handle.state_dict().items()}
        sent = handle.ledger.totals().sent_bytes
        results.append(
            {"gradients": [{k: v.numpy() for k, v in g.items()} for g in found], "layouts": layouts, "sent": sent}
        )
    return results


def test_every_rank_gets_the_mean_of_the_methods_definition() -> None:
    """With no learning rate the gradients are known: the same rounds over virtual ranks must give the same."""
    world = 2
    local: list[list[dict[str, Tensor]]] = []
    for rank in range(world):
        local.append([])
        for step in (1, 2, 3):
            model = Scaled()
            loss_of(model, batch(rank, step)).backward()
            local[-1].append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    results = run_ranks(world, _of_methods)
    for row, (name, config, back) in enumerate(METHODS):
        layouts = results[0][row]["layouts"]
        assert {n for layout in layouts.values() for n, _ in layout} == local[0][0].keys()
        sent = [0] * world
        for key, layout in layouts.items():
            segments = segments_of([(n, tuple(s)) for n, s in layout], world)
            states = simulate.states(world, key.partition("/")[2], 5, segments)
            exact, method, gather = Identity(IdentityConfig()), build(name, config), build(back, {})
            for number in range(3):
                inputs = [flatten([g[number][s.name].reshape(s.shape) for s in segments], world) for g in local]
                chosen = method if number else exact  # the first backward, in provisional buckets
                if number > 1:
                    for state in states:
                        state.begin(torch.tensor(True))
                if number == 0:
                    inner = simulate.states(world, "", 0, segments)
                rounds = [
                    all_reduce(x, chosen, gather if number else exact, s, world)
                    for x, s in zip(inputs, states if number else inner, strict=True)
                ]
                outcome = simulate.lockstep(rounds)
                sent = [a + b.total for a, b in zip(sent, outcome.sent, strict=True)]
                for s, tensor in zip(segments, unflatten(outcome.results[0], segments), strict=True):
                    for result in results:
                        got = torch.from_numpy(result[row]["gradients"][number][s.name]).reshape(tensor.shape)
                        assert torch.equal(got, tensor), (name, config, number, s.name)
        assert [r[row]["sent"] for r in results] == sent, (name, config)


def _states() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    # find_unused_parameters: DDP keeps its first buckets, so a resumed run can repeat a straight one bit for bit
    unused = {"find_unused_parameters": True, "bucket_cap_mb": 0.0002}
    straight = wrapped(**unused)
    handle = ddp.attach(straight, build("topk", {"ratio": 0.2}))
    steps(straight, range(2))
    saved, weights = copy.deepcopy(handle.state_dict()), copy.deepcopy(straight.module.state_dict())
    resumed = wrapped(**unused)
    resumed.module.load_state_dict(weights)
    second = ddp.attach(resumed, build("topk", {"ratio": 0.2}))
    second.load_state_dict(saved)
    waiting = second.state_dict()
    seen["waits"] = waiting.keys() == saved.keys()
    seen["buckets"] = len(saved)
    seen["resumed"] = furthest(steps(straight, range(2, 4)), steps(resumed, range(2, 4)))
    # buckets that DDP forms anew after the first backward: none of that step is remembered, and nothing is mixed
    for options in ({}, {"static_graph": True}):
        rebuilt = wrapped(bucket_cap_mb=0.0002, **options)
        third = ddp.attach(rebuilt, build("topk", {"ratio": 0.2}))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            steps(rebuilt, range(1))
            seen[f"after one step {options}"] = len(third.state_dict())
            steps(rebuilt, range(4))
        seen[f"ticks {options}"] = {int(e["tensors"]["tick"]) for e in third.state_dict().values()}
    # state that does not fit its bucket is dropped aloud
    for entry in saved.values():
        entry["layouts"] = {"": [["other", [3]]]}
    fourth = ddp.attach(misfit := wrapped(**unused), build("topk", {"ratio": 0.2}))
    fourth.load_state_dict(saved)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps(misfit, range(1))
    seen["warned"] = sum("loaded state dropped" in str(w.message) for w in caught) == len(saved)
    # no_sync: nothing is exchanged; then one exchange of the sum
    quiet = wrapped()
    fifth = ddp.attach(quiet, codec("identity", {}))
    with quiet.no_sync():
        loss_of(quiet, batch(dist.get_rank(), 0)).backward()
    seen["no_sync"] = fifth.ledger.totals().calls
    # NaN on one rank
    bad = wrapped()
    sixth = ddp.attach(bad, build("topk", {"ratio": 0.5}))
    steps(bad, range(2))
    before = {k: {n: t.clone() for n, t in e["tensors"].items()} for k, e in sixth.state_dict().items()}
    bad.zero_grad()
    bad.module.nan_in_backward = dist.get_rank() == 1
    loss_of(bad, batch(dist.get_rank(), 2)).backward()
    seen["nan"] = not all(bool(torch.isfinite(p.grad).all()) for p in bad.parameters() if p.grad is not None)
    sixth.rollback()
    after = sixth.state_dict()
    seen["untouched"] = all(torch.equal(after[k]["tensors"][n], t) for k, e in before.items() for n, t in e.items())
    return seen


def test_states_are_kept_by_bucket_and_parameters() -> None:
    for seen in run_ranks(2, _states):
        assert seen.pop("buckets") > 2
        assert seen == {
            "waits": True,
            "resumed": 0,
            "after one step {}": 0,
            "ticks {}": {4},
            "after one step {'static_graph': True}": 0,
            "ticks {'static_graph': True}": {3},
            "warned": True,
            "no_sync": 0,
            "nan": True,
            "untouched": True,
        }


# ---- what every rank knows is not gathered --------------------------------------------------------------------


class Wide(nn.Module):
    """Matrices worth factors, and one that is not; sizes that 2 and 4 ranks share out evenly: no padding of ours."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(96, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _beside_torchs_powersgd(config: dict[str, Any]) -> tuple[int, int, float, dict[str, Any]]:
    """Bytes of three steps by torch's hook and by ours, how far the gradients are apart, and ours."""
    theirs, ours = DistributedDataParallel(Wide()), DistributedDataParallel(Wide())
    hook = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    theirs.register_comm_hook(hook, powerSGD_hook.powerSGD_hook)
    handle, sent, stock = ddp.attach(ours, build("powersgd", {"rank": 2, **config})), 0, dist.all_reduce

    def counted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        nonlocal sent
        sent += sent_by(AllReduce(tensor, "sum"), dist.get_rank(), dist.get_world_size()).total
        return stock(tensor, *args, **options)

    distance, before = 0.0, 0
    for step in range(5):
        x = torch.randn(8, 96, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        if step == 2:  # torch's hook has begun, DDP has formed our buckets
            dist.all_reduce, before = counted, handle.ledger.totals().sent_bytes
        for model in (theirs, ours):
            model.zero_grad()
            model(x).square().mean().backward()
        if step == 2:
            pairs = zip(theirs.parameters(), ours.parameters(), strict=True)
            vectors = [(a.grad, b.grad) for a, b in pairs if a.grad is not None and a.dim() == 1]
            distance = max(float((a - b).abs().max()) for a, b in vectors if b is not None)
    dist.all_reduce = stock
    gradients = {n: p.grad.numpy() for n, p in ours.module.named_parameters() if p.grad is not None}
    return sent, handle.ledger.totals().sent_bytes - before, distance, gradients


def test_powersgd_sends_no_more_than_torchs_hook() -> None:
    for world in (2, 4):
        for config in ({}, {"layers": {"*.bias": "int8"}}, {"warmup_steps": 1}):
            results = run_ranks(world, _beside_torchs_powersgd, config)
            for theirs, ours, distance, gradients in results:
                assert 0 < ours <= theirs, (ours, theirs)
                assert distance < 1e-6 or "layers" in config, "vectors go uncompressed"
                for name, gradient in gradients.items():
                    assert (gradient == results[0][3][name]).all(), "the same on every rank, bit for bit"


def test_what_every_rank_knows_is_what_the_owners_have() -> None:
    """Over virtual ranks: an all-reduce by powersgd is its reduce-scatter, all ranks' rows together."""
    world = 3
    segments = segments_of([("a", (40, 30)), ("bias", (40,)), ("b", (20, 50)), ("c", (2, 3))], world)
    n = segments[-1].stop
    inputs = [torch.randn(world, n, generator=torch.Generator().manual_seed(r)) for r in range(world)]
    for bad in (False, True):
        inputs[1][2, 7] = torch.nan if bad else inputs[1][2, 7]
        for config in ({}, {"layers": {"[ab]": {"method": "powersgd", "rank": 1}}}):
            method = build("powersgd", {"rank": 2, "error_feedback": False, **config})
            states = simulate.states(world, "unit", 0, segments)
            exact = Identity(IdentityConfig())
            rounds = [all_reduce(x, method, exact, s, 2.0) for x, s in zip(inputs, states, strict=True)]
            outcome = simulate.lockstep(rounds)
            fresh = simulate.states(world, "unit", 0, segments)
            owners = torch.stack([r.total for r in simulate.reduce_scatter(method, inputs, fresh)]) / 2
            for result in outcome.results:
                torch.testing.assert_close(result, owners, equal_nan=True)
                assert torch.equal(result.nan_to_num(7), outcome.results[0].nan_to_num(7))


def _refusals() -> list[str]:
    messages = []

    def refused(model: nn.Module, *methods: Any) -> None:
        try:
            ddp.attach(DistributedDataParallel(model), *methods)
        except ValueError as e:
            messages.append(str(e))

    refused(nn.EmbeddingBag(3, 4, sparse=True), cc.make("int8"))
    refused(nn.Linear(2, 2, dtype=torch.float64), cc.make("int8"))
    refused(nn.Linear(2, 2), cc.make("int8"), cc.make("powersgd"))
    model = DistributedDataParallel(nn.Linear(2, 2))
    handle = ddp.attach(model, build("int8", {}))
    for attempt in (
        lambda: ddp.attach(model, build("int8", {})),
        lambda: handle.load_state_dict({"x": {"world": 3}}),
        handle.compare,
    ):
        try:
            attempt()
        except ValueError as e:
            messages.append(str(e))
    single = DistributedDataParallel(
        nn.Linear(2, 2), process_group=dist.new_group([dist.get_rank()], use_local_synchronization=True)
    )
    alone = ddp.attach(single, build("topk", {}))
    single(torch.ones(1, 2)).sum().backward()
    weight = single.module.weight.grad
    messages.append(f"alone: {alone.ledger.totals().calls} {weight.tolist() if weight is not None else None}")
    return messages


def test_what_cannot_work_is_refused() -> None:
    words = [
        "sparse",
        "float64",
        "powersgd with error feedback does not send",
        "one communication hook",
        "reshard",
        "compare: the gradients of DDP's hook",
        "alone: 0 [[1.0, 1.0], [1.0, 1.0]]",
    ]
    for message, word in zip(run_ranks(2, _refusals)[0], words, strict=True):
        assert word in message
