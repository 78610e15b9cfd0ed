"""Muon on shards is torch's Muon on whole matrices; what it gathers is counted, compressed and remembered."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import comm_compress as cc
from comm_compress.integrations.optim.newton_schulz import orthogonalised
from tests.comm_compress.integrations.optim.training import OTHERS, SHAPES, UNITS, Stock, Virtual, weights
from tests.comm_compress.pretended import OnGpu, gpu

STEPS = 4


@pytest.mark.parametrize("how", ["all_gather", "owners"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_it_is_torchs_muon_beside_torchs_adamw(world: int, how: str) -> None:
    stock, ours = Stock(), Virtual(world, others=weights(OTHERS), how=how)
    for step in range(STEPS):
        skipped = ["a.odd", "b.tall"] if step == 2 else []
        for one in (stock, ours):
            one.step(step, without=skipped)
    for name, p in stock.whole.items():
        torch.testing.assert_close(ours.whole[name], p, rtol=0, atol=2e-7, msg=name)
        assert not torch.equal(p, weights()[name]), "it has moved"
    for name, p in stock.others.items():
        assert torch.equal(ours.others[name], p), name


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    ours = Virtual(2)
    ours.step(0, without=UNITS["a"])
    before = weights()
    assert [name for name in SHAPES if torch.equal(ours.whole[name], before[name])] == UNITS["a"]


@pytest.mark.parametrize("world", [2, 3])
def test_rows_are_sent_in_two_bytes_an_element_once_to_each_other_rank(world: int) -> None:
    ours = Virtual(world)
    ours.step(0)
    ours.step(1)
    for name, names in UNITS.items():
        elements = sum(math.ceil(SHAPES[n][0] / world) * SHAPES[n][1] for n in names)
        for ledger in ours.handle.ledgers:
            totals = ledger.totals("optimizer", name)
            assert totals.calls == 2
            assert totals.elements == 2 * (world - 1) * elements
            assert totals.sent_bytes == totals.raw_bytes == 2 * 2 * (world - 1) * elements
    assert ours.handle.ledger.totals() == ours.handle.ledger.totals("optimizer")


@pytest.mark.parametrize("world", [2, 3, 5])
def test_by_owners_each_matrix_is_worked_on_once_and_fewer_bytes_are_sent(world: int) -> None:
    exact, ours = Virtual(world), Virtual(world, how="owners")
    exact.step(0)
    ours.step(0)
    assert all(torch.equal(exact.whole[name], ours.whole[name]) for name in SHAPES), "the numbers are the same"
    counted = []
    for unit in ours.handle.units:
        updates = [[s.detach() for s in of_rank] for of_rank in zip(*(m.shards for m in unit.matrices), strict=True)]
        ours.handle.begin(unit, updates, lambda whole: counted.append(tuple(whole.shape)) or whole).finish()  # type: ignore[func-returns-value]
    assert sorted(counted) == sorted(SHAPES.values())
    headers = 8 * (world - 1) * len(UNITS)
    sent = [sum(ledger.totals().sent_bytes for ledger in one.handle.ledgers) for one in (exact, ours)]
    raw = sum(ledger.totals().raw_bytes for ledger in ours.handle.ledgers)
    assert sent[1] == raw + 2 * world * headers, "the lengths of what comes back; two steps"
    assert raw / 2 == pytest.approx(sent[0] * 2 / world)
    assert all(ledger.totals().extra_collectives == 0 for ledger in ours.handle.ledgers)


@pytest.mark.parametrize(
    ("world", "method", "is_less"), [(2, None, False), (3, None, True), (3, "int8", False), (3, "delta", False)]
)
def test_auto_goes_by_owners_where_that_sends_less_and_changes_nothing(
    world: int, method: str | None, is_less: bool
) -> None:
    auto, gathered = Virtual(world, method, how="auto"), Virtual(world, method)
    for one in (auto, gathered):
        one.step(0)
    assert all(torch.equal(auto.whole[name], gathered.whole[name]) for name in SHAPES)
    sent = [sum(ledger.totals().sent_bytes for ledger in one.handle.ledgers) for one in (auto, gathered)]
    assert (sent[0] < sent[1]) == is_less
    assert (sent[0] == sent[1]) != is_less


@pytest.mark.parametrize("how", ["all_gather", "owners"])
@pytest.mark.parametrize(("method", "most", "far"), [("int8", 0.7, 0.05), ("int4 hadamard", 0.5, 0.5)])
def test_methods_send_less_and_end_nearby(method: str, most: float, far: float, how: str) -> None:
    exact, ours = Virtual(2), Virtual(2, method, how=how)
    for step in range(STEPS):
        exact.step(step)
        ours.step(step)
    # small units have many scales for few elements
    sent, raw = (getattr(ours.handle.ledger.totals("optimizer", "b"), n) for n in ("sent_bytes", "raw_bytes"))
    assert sent < most * raw
    before = weights()
    for name in UNITS["b"]:
        moved = (exact.whole[name] - before[name]).norm()
        distance = (exact.whole[name] - ours.whole[name]).norm() / moved
        assert 0 < distance < far, name


def test_every_rank_moves_by_the_same_whole_matrix() -> None:
    """With any method: rows of two ranks are parts of one orthogonalised matrix, as replicas must stay replicas."""
    ours = Virtual(3, "int4")
    seen: dict[str, list[torch.Tensor]] = {}
    (unit, *_) = ours.handle.units
    updates = [
        [torch.randn(s.shape) for s in of_rank] for of_rank in zip(*(m.shards for m in unit.matrices), strict=True)
    ]
    rows = ours.handle.begin(unit, updates, lambda whole: seen.setdefault("whole", []).append(whole) or whole).finish()  # type: ignore[func-returns-value]
    for i, matrix in enumerate(unit.matrices):
        assert torch.equal(torch.cat([of_rank[i] for of_rank in rows]), seen["whole"][i]), matrix.name


@pytest.mark.parametrize(("method", "how"), [(None, "auto"), ("delta", "auto"), ("int8", "owners")])
def test_a_saved_optimizer_goes_on_bit_for_bit(method: str | None, how: str) -> None:
    whole, again = (Virtual(2, method, weights(OTHERS), how) for _ in range(2))
    for step in range(2):
        whole.step(step)
    again.optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))  # else both have the same buffers
    again.handle.load_state_dicts(whole.handle.state_dicts())
    with torch.no_grad():
        for name, p in (again.whole | again.others).items():
            p.copy_((whole.whole | whole.others)[name])
    for step in range(2, STEPS):
        whole.step(step)
        again.step(step)
    for name, p in (whole.whole | whole.others).items():
        assert torch.equal(p, (again.whole | again.others)[name]), name
    totals = [one.handle.ledger.totals("optimizer").sent_bytes for one in (whole, again)]
    assert totals[0] > totals[1]


def test_what_a_method_remembers_moves_to_another_number_of_ranks() -> None:
    two, three = Virtual(2, "delta"), Virtual(3, "delta")
    two.step(0)
    two.step(1)
    saved = two.handle.state_dicts()
    with pytest.warns(UserWarning, match="optimizer/b: last"):  # as of parameters
        moved = cc.reshard(saved, 3)
    three.handle.load_state_dicts(moved)
    name = next(
        key
        for key in saved[0]["optimizer/b"]["tensors"]
        if key != "tick" and saved[0]["optimizer/b"]["tensors"][key].dim() == 2
    )
    before, after = (
        saved[0]["optimizer/b"]["tensors"][name],
        three.handle.state_dicts()[0]["optimizer/b"]["tensors"][name],
    )
    assert after.shape == (3, three.handle.units[1].width)
    tall = {
        world: rows[:, : math.ceil(64 / world) * 3].reshape(-1, 3)[:64] for world, rows in ((2, before), (3, after))
    }
    assert torch.equal(tall[2], tall[3])
    with pytest.raises(ValueError, match="of 2 ranks do not fit 3"):
        three.handle.load_state_dicts(saved)


def test_plain_parameters_need_no_network() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 5, bias=False), nn.LayerNorm(5)))
    found = cc.optim.matrices(model, ["0", "1"])
    assert {unit: list(held) for unit, held in found.items()} == {"0": ["0.weight"], "1": ["1.0.weight"]}
    handle = cc.optim.attach(found, "int8")
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = cc.optim.Muon(handle, [{"params": others, "weight_decay": 0.0}], lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    assert optimizer.step(lambda: model(torch.ones(2, 4)).square().sum().backward() or 7) == 7
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert not handle.sends
    assert handle.ledger.totals().calls == 0
    assert handle.state_dict() == {}


WRONG: dict[str, Any] = {
    "there is no matrix": lambda: cc.optim.attach({}),
    "'a' has no matrix": lambda: cc.optim.attach({"a": {}}),
    r"b: Muon is for matrices, and this has the shape \(3,\)": lambda: cc.optim.attach(
        {"a": {"b": nn.Parameter(torch.ones(3))}}
    ),
    "the model has no 'c'": lambda: cc.optim.matrices(nn.Linear(2, 2), ["c"]),
    "method: topk with error_feedback is for gradients": lambda: cc.optim.check("topk"),
    "method: randomk .*does not bring every element back": lambda: cc.optim.check("randomk no feedback"),
    "shards of": lambda: cc.optim.VirtualHandle(
        {"a": {"b": [nn.Parameter(torch.ones(2, 2))], "c": [nn.Parameter(torch.ones(2, 2))] * 2}}
    ),
    r"are not the rows that FSDP2 gives 2 ranks": lambda: cc.optim.VirtualHandle(
        {"a": {"b": [nn.Parameter(torch.ones(1, 2)), nn.Parameter(torch.ones(3, 2))]}}
    ),
    'exchange = "owners": delta with these settings': lambda: cc.optim.check("delta", "owners"),
    "exchange = 'ring': must be": lambda: Virtual(2, how="ring"),
    "momentum = 1": lambda: cc.optim.Muon(Virtual(2).handle, [], lr=0.1, momentum=1.0),
}


@pytest.mark.parametrize("complaint", WRONG)
def test_what_cannot_be_is_refused(complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        WRONG[complaint]()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a pretended GPU, where there is none")
@pytest.mark.parametrize(("method", "how"), [(None, "all_gather"), ("int8", "all_gather"), (None, "owners")])
def test_an_exchange_keeps_to_its_tensors_device(method: str | None, how: str) -> None:
    (unit, *_) = (on_cpu := Virtual(3, method, how=how).handle).units
    on_gpu = Virtual(3, method, how=how).handle
    updates = [[torch.randn(s.shape) for s in rank] for rank in zip(*(m.shards for m in unit.matrices), strict=True)]
    expected = on_cpu.begin(unit, updates, orthogonalised).finish()
    with gpu() as there:
        got = on_gpu.begin(unit, [[there(rows) for rows in rank] for rank in updates], orthogonalised).finish()
        for of_rank, theirs in zip(got, expected, strict=True):
            for rows, same in zip(of_rank, theirs, strict=True):
                assert isinstance(rows, OnGpu)
                assert torch.equal(rows.cpu(), same)
