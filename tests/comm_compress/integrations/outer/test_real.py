"""Local steps on real ranks: equal replicas, the numbers and bytes of virtual ones, resumed runs, NaN."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist

import comm_compress as cc
from tests.comm_compress.integrations.outer.training import (
    RUNS,
    STEPS,
    Net,
    adam,
    digest,
    flat,
    inner_step,
    real,
    virtual,
)
from tests.distributed import run_ranks

ALONE = ("stock", "diloco", "sparseloco", "streaming")  # what may differ where there is nobody to talk to
AUDITED = ("int8 both ways", "sparseloco", "streaming", "by gradient", "by gradient, sparse", "gradients apart")


def _all_runs() -> dict[str, Any]:
    alone = dist.get_world_size() == 1
    found = {name: real(settings) for name, settings in RUNS.items() if not alone or name in ALONE}
    audited = {name: RUNS[name] for name in AUDITED} | {"stock": {**RUNS["stock"], "count_stock": True}}
    return found | {f"{name}, audited": _audited(settings) for name, settings in audited.items() if not alone}


def _audited(settings: dict[str, Any]) -> tuple[int, int]:
    """The bytes that the collectives carried, and those that the ledger says."""
    model = Net()
    handle = cc.outer.attach(model, **settings)
    with cc.audit(handle) as audit:
        optimizer = adam(p for p in model.parameters() if p.requires_grad)
        for step in range(STEPS):
            inner_step(model, optimizer, dist.get_rank(), step, handle)
            handle.step()
        handle.synchronise()
    assert not audit.not_counted
    return audit.sent_bytes, handle.ledger.totals("outer").sent_bytes


@pytest.mark.parametrize("world", [1, 2, 3])
def test_real_replicas_are_virtual_ones_and_stay_equal(world: int) -> None:
    torch.set_num_threads(1)
    by_rank = run_ranks(world, _all_runs)
    for name in by_rank[0].keys() & RUNS.keys():
        settings = RUNS[name]
        seen, expected = [found[name] for found in by_rank], virtual(world, settings)
        assert seen[0]["applied"], name
        for step in range(len(seen[0]["applied"])):
            outer = {s["applied"][step][3] for s in seen}
            assert len(outer) == 1, f"{name}: outer parameters are the same on all replicas"
            equal = {s["applied"][step][2] for s in seen}
            assert (len(equal) == 1) == (world == 1 or "mixing" not in settings), f"{name}: replicas after applying"
        exact = world <= 2 or name not in (
            "stock",
            "gradients apart from stock",
            "powersgd",
        )  # those sum in the network's order
        for rank, (there, here) in enumerate(zip(seen, expected, strict=True)):
            if exact:
                assert there == here, f"{name}: rank {rank} of {world}"
            else:
                assert there["losses"] == pytest.approx(here["losses"], rel=1e-4), name
            assert there["counts"] == here["counts"], name
    first = by_rank[0]
    assert first["stock"]["counts"][0] == 0, "torch's own all-reduce is counted by nobody"
    if world == 2:
        assert first["identity"]["weights"] == first["stock"]["weights"], "identity is torch's all-reduce, bit for bit"
    if world > 1:
        assert first["int8 both ways"]["counts"][3] < 0.4 * first["int8 both ways"]["counts"][2]
        for name in (*AUDITED, "stock"):
            sent, counted = first[f"{name}, audited"]
            assert sent == counted > 0, name


def _started(settings: dict[str, Any]) -> tuple[Net, torch.optim.Optimizer, cc.outer.Handle]:
    model = Net(dropout=0)
    handle = cc.outer.attach(model, **settings)
    return model, adam(p for p in model.parameters() if p.requires_grad), handle


def _go_on(model: Net, optimizer: torch.optim.Optimizer, handle: cc.outer.Handle, steps: range) -> None:
    for step in steps:
        inner_step(model, optimizer, dist.get_rank(), step, handle)
        handle.step()


def _resumed(settings: dict[str, Any], stop: int) -> tuple[bool, list[str]]:
    """Does a run that was saved after ``stop`` steps go on as one that was not? What was under way then?"""
    model, optimizer, handle = straight = _started(settings)
    _go_on(*straight, range(stop))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), handle.state_dict()))
    _go_on(*straight, range(stop, 2 * STEPS))
    new = _started(settings)
    new[0].load_state_dict(saved[0])
    new[1].load_state_dict(saved[1])
    new[2].load_state_dict(saved[2])
    _go_on(*new, range(stop, 2 * STEPS))
    same = digest(new[0].parameters()) == digest(model.parameters())
    return same and flat(new[2].state_dict()) == flat(handle.state_dict()), sorted(saved[2]["outer"]["arrived"])


def _resumes() -> dict[str, Any]:
    names = ("diloco", "sparseloco", "streaming", "by gradient", "by gradient, sparse", "gradients apart")
    found: dict[str, Any] = {f"{name} {stop}": _resumed(RUNS[name], stop) for name in names for stop in (4, 7)}
    settings = {**RUNS["streaming"], "fragments": 1, "mixing": 0.0}
    _, _, handle = _started(settings)
    saved = handle.state_dict()
    refusals = []
    for wrong in (
        {**saved, "outer": {**saved["outer"], "rank": 1 - dist.get_rank()}},
        {**saved, "outer": {**saved["outer"], "parameters": {}}},
        {key: value for key, value in saved.items() if key != "outer"},
        {"outer": saved["outer"]},
        _started({**settings, "outer_optimizer": torch.optim.Adam})[2].state_dict(),
        _started({**settings, "fragments": 2})[2].state_dict(),
    ):
        with pytest.raises(ValueError, match=r"outer|units differ") as refused:
            handle.load_state_dict(wrong)
        refusals.append(str(refused.value))
    return {"resumes": found, "refusals": refusals}


def test_a_run_saved_between_two_synchronisations_goes_on_bit_for_bit_or_is_refused() -> None:
    for found in run_ranks(2, _resumes):
        assert {name: same for name, (same, _) in found["resumes"].items()} == dict.fromkeys(found["resumes"], True)
        assert found["resumes"]["streaming 4"][1] == ["fragment2"], "sent after step 3, applied after step 6"
        assert found["resumes"]["streaming 7"][1] == ["fragment0", "fragment1"]
        for message, word in zip(
            found["refusals"],
            ["is of replica", "other parameters", "no outer state", "units differ", "another outer optimizer", "units"],
            strict=True,
        ):
            assert word in message


def _with_a_nan(settings: dict[str, Any]) -> dict[str, Any]:
    model, optimizer, handle = _started(settings)
    _go_on(model, optimizer, handle, range(4))
    before = flat(copy.deepcopy(handle.state_dict()))
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.last.weight[2, 3] = torch.nan
    applied = [name for _ in range(settings["every"]) for name in handle.step()]
    named = dict(model.named_parameters())
    found = {
        "applied": applied,
        "seen": [n for n, p in named.items() if not bool(torch.isfinite(p).all())],
        "finite": handle.finite,
    }
    after = flat(handle.state_dict())
    found["changed"] = sorted(key for key in before if before[key] != after.get(key) and key != "outer/step")
    handle.restore()
    found["restored"] = digest(named[n].float() for n in handle.outer.values) == digest(handle.outer.values.values())
    _go_on(model, adam(p for p in model.parameters() if p.requires_grad), handle, range(4, 4 + settings["every"]))
    found["goes on"] = handle.finite and all(bool(torch.isfinite(p).all()) for p in named.values())
    return found


def _nans() -> list[dict[str, Any]]:
    feedback = {"method": "topk", "ratio": 0.1}
    return [
        _with_a_nan({"every": 4, "method": feedback, "outer_optimizer": cc.outer.nesterov()}),
        _with_a_nan({"every": 4, "method": feedback, "exchange": "all_gather"}),
        _with_a_nan({"every": 4, "method": "int8", "all_gather": "int8"}),
        _with_a_nan({"every": 4, "method": "int8", "all_gather": feedback}),
        _with_a_nan({"every": 4}),
    ]


def test_a_nan_of_one_replica_is_seen_on_all_and_changes_nothing_that_is_kept() -> None:
    for by_run in run_ranks(2, _nans):
        for found in by_run:
            assert found["applied"] == ["fragment0"]
            assert len(found["seen"]) == 8, "all parameters that train, and none that does not"
            assert not found["finite"]
            assert found["changed"] == []
            assert found["restored"]
            assert found["goes on"]


def _refusals() -> list[str]:
    messages, rank = [], dist.get_rank()

    def refused(model: Any, *words: Any, **settings: Any) -> None:
        with pytest.raises(ValueError, match=r"\w") as error:
            cc.outer.attach(model, *words, **{"every": 2, **settings})
        messages.append(str(error.value))

    other = Net()
    with torch.no_grad():
        other.last.bias[1] += rank
    refused(other)
    refused(torch.nn.parallel.DistributedDataParallel(Net()), method="int8")
    refused(Net(), method="delta")
    refused(Net(), method="int8", all_gather="powersgd")
    refused(Net(), method="int8", all_gather="int8", exchange="all_gather")
    refused(Net(), method="topk warmup_steps=3", exchange="all_gather")
    refused(Net(), all_gather="int8")
    refused(Net(), method="int8", every=0)
    refused(Net(), _other_group())
    return messages


def _other_group() -> Any:
    groups = [dist.new_group([rank]) for rank in range(2)]
    return groups[1 - dist.get_rank()]


def test_what_cannot_work_is_refused_on_every_rank() -> None:
    words = [
        "differ in last.bias:",
        "reduces gradients among these ranks at every step",
        "for parameters (all_gather) only",
        "all_gather",
        "messages that go to everyone have none",
        "does not send one message",
        "method is not given",
        "every = 0",
        "not a rank of it",
    ]
    for messages in run_ranks(2, _refusals):
        for message, word in zip(messages, words, strict=True):
            assert word in message
