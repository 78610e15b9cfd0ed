"""What local steps must hold whatever the method, over virtual replicas; and that a broken version does not hold it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import comm_compress as cc
from comm_compress.integrations.outer.synchroniser import Synchroniser
from comm_compress.integrations.outer.weights import OuterParameters
from comm_compress.integrations.replicas.fragments import Fragment
from tests.comm_compress.integrations.outer.training import (
    SPARSE,
    Net,
    adam,
    digest,
    farthest,
    flat,
    inner_step,
    inner_steps,
    loss_of,
    sgd,
)

STEPS = 6
Plain = functools.partial(Net, dropout=0)


def replicas(world: int, inner: Any = adam, **settings: Any) -> cc.outer.VirtualReplicas:
    torch.set_num_threads(1)
    return cc.outer.VirtualReplicas(Net(dropout=0), world, inner, **{"every": 1, **settings})


def train(workers: cc.outer.VirtualReplicas, steps: range = range(STEPS)) -> None:
    for step in steps:
        inner_steps(workers, step)
        workers.step()


def data_parallel(world: int) -> Net:
    """A model whose gradient is the mean over ``world`` ranks' batches."""
    model = Net(dropout=0)
    optimizer = sgd([p for p in model.parameters() if p.requires_grad])
    for step in range(STEPS):
        for rank in range(world):
            (loss_of(model, rank, step) / world).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def far_from_data_parallel(world: int, method: str | None) -> float:
    """How far one step of plain SGD between plain averages ends from data-parallel SGD."""
    workers, expected = replicas(world, sgd, method=method), data_parallel(world)
    train(workers)
    return farthest(workers.models, expected)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_synchronised_at_every_step_plain_sgd_is_data_parallel_sgd(world: int) -> None:
    assert far_from_data_parallel(world, "identity") < 1e-6
    assert far_from_data_parallel(world, None) < 1e-6
    assert world == 1 or far_from_data_parallel(world, "int4") > 1e-6, "the distance can be seen"


def _sum_not_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    step = OuterParameters.step
    monkeypatch.setattr(OuterParameters, "step", lambda self, means: step(self, [(n, 2 * m) for n, m in means]))


def _the_wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = OuterParameters.pseudo_gradient
    monkeypatch.setattr(OuterParameters, "pseudo_gradient", lambda self, f: [(n, -m) for n, m in compute(self, f)])


def _never_put(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OuterParameters, "put", lambda self, fragment, mixing=0.0: None)


def _outer_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OuterParameters, "step", lambda self, means: None)


def _one_parameter_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    put = OuterParameters.put

    def partly(self: OuterParameters, fragment: Fragment, mixing: float = 0.0) -> None:
        rest = {name: p for name, p in fragment.parameters.items() if name != "last.bias"}
        put(self, Fragment(fragment.name, rest), mixing)

    monkeypatch.setattr(OuterParameters, "put", partly)


@pytest.mark.parametrize(
    "sabotage", [_sum_not_mean, _the_wrong_way, _never_put, _outer_stands_still, _one_parameter_forgotten]
)
def test_a_broken_synchronisation_is_far_from_data_parallel(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    assert not far_from_data_parallel(2, "identity") < 1e-4


class Single(nn.Module):
    """One matrix, of which two ranks or four own whole chunks of 8 elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(x, (0, 2)) @ self.weight[:, :5]


def by_hand(make: Callable[[], nn.Module], world: int, every: int, feedback: float | None) -> list[torch.Tensor]:
    """The outer parameters of DiLoCo (Nesterov, lr 0.7, momentum 0.9) or, with ``feedback``, of SparseLoCo's equations.

    Written from the papers, parameter by parameter, without anything of ours but the model and its data. Of the
    pseudo-gradients of SparseLoCo one element of each chunk of 8 is kept, in float32.
    """
    models = [make() for _ in range(world)]
    optimizers = [adam(p for p in m.parameters() if p.requires_grad) for m in models]
    outer = [p.detach().clone() for p in models[0].parameters() if p.requires_grad]
    momentum = [torch.zeros_like(p) for p in outer]
    owed = [[torch.zeros_like(p) for p in outer] for _ in range(world)]
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inner_step(model, optimizer, rank, step)
        if (step + 1) % every:
            continue
        replicas_now = [[p for p in m.parameters() if p.requires_grad] for m in models]
        for i, theta in enumerate(outer):
            mean = torch.zeros_like(theta)
            for rank in range(world):
                delta = theta - replicas_now[rank][i].detach()
                if feedback is not None:
                    target = feedback * owed[rank][i] + delta
                    delta = largest_of_eight(target)
                    owed[rank][i] = target - delta
                mean += delta / world
            if feedback is None:
                momentum[i] = 0.9 * momentum[i] + mean
                theta -= 0.7 * (mean + 0.9 * momentum[i])
            else:
                theta -= mean
            for rank in range(world):
                replicas_now[rank][i].data.copy_(theta)
    return outer


def largest_of_eight(target: torch.Tensor) -> torch.Tensor:
    """What chunked top-k keeps of a parameter whose rows are not shared out, zeros elsewhere."""
    kept, flat_target = torch.zeros(target.numel()), target.reshape(-1)
    for start in range(0, target.numel(), 8):
        chunk = flat_target[start : start + 8]
        place = int(chunk.abs().argmax())
        kept[start + place] = chunk[place]
    return kept.view_as(target)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_diloco_is_the_papers_equations(world: int) -> None:
    for method in (None, "identity"):
        workers = replicas(world, every=2, method=method, outer_optimizer=cc.outer.nesterov())
        train(workers)
        for found, expected in zip(workers.outer.values.values(), by_hand(Plain, world, 2, None), strict=True):
            torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("world", [2, 4])
def test_sparseloco_is_the_papers_equations(world: int) -> None:
    method = "topk selection=chunked chunk_size=8 k=1 error_feedback(decay=0.95)"
    torch.set_num_threads(1)
    workers = cc.outer.VirtualReplicas(Single(), world, adam, method, every=2, exchange="all_gather")
    train(workers)
    (found,), (expected,) = workers.outer.values.values(), by_hand(Single, world, 2, 0.95)
    torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-5)
    (other,) = by_hand(Single, world, 2, 1.0)
    assert not torch.allclose(other, expected, rtol=1e-4, atol=1e-5), "the decay can be seen"


@pytest.mark.parametrize("world", [2, 3, 5])
def test_messages_to_everyone_give_the_bits_of_a_reduce_scatter_and_an_exact_gather(world: int) -> None:
    for method in (SPARSE, "int8", "topk ratio=0.05", "qsgd bits=2", "topk ratio=0.1 values=bf16 no feedback"):
        one, other = (replicas(world, every=2, method=method, exchange=e) for e in ("reduce_scatter", "all_gather"))
        for workers in (one, other):
            train(workers)
            assert len({digest(m.parameters()) for m in workers.models}) == 1, "replicas are equal"
        for a, b in zip(one.state_dicts(), other.state_dicts(), strict=True):
            differing = {key for key, value in flat(b).items() if flat(a)[key] != value}
            assert differing <= {"outer/fragment0/names"}, f"{method}: all but the gather's own state is equal"
        half, whole = one.ledger.totals("outer"), other.ledger.totals("outer")
        sums = 4 * half.elements // 2
        assert whole.sent_bytes == world * (half.sent_bytes - sums), "W messages for one, and no sums"
        auto = replicas(world, every=2, method=method, exchange="auto")
        train(auto)
        assert auto.ledger.totals("outer").sent_bytes == min(half.sent_bytes, whole.sent_bytes), method


@pytest.mark.parametrize(
    "settings", [{"method": "powersgd"}, {"method": None}, {"method": SPARSE, "all_gather": "int8"}]
)
def test_auto_takes_the_way_that_a_method_has(settings: dict[str, Any]) -> None:
    found = [replicas(2, every=2, exchange=e, **settings) for e in ("reduce_scatter", "auto")]
    for workers in found:
        train(workers)
    one, other = (workers.ledger.totals("outer").sent_bytes for workers in found)
    assert one == other


def test_sparse_messages_send_what_sparseloco_says() -> None:
    method = "topk selection=chunked chunk_size=4096 k=64 indices=packed values=bf16"
    model = nn.Linear(256, 4 * 4096 // 256, bias=False)
    workers = cc.outer.VirtualReplicas(model, 4, sgd, method, every=30, exchange="all_gather")
    for _ in range(30):
        for rank in range(4):
            with workers.worker(rank) as (module, optimizer):
                module(torch.randn(2, 256)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        workers.step()
    totals, chunks = workers.ledger.totals("outer"), 4
    assert totals.index_bytes == 3 * chunks * 64 * 12 // 8, "12 bits a position, to three others"
    assert totals.value_bytes == 3 * chunks * 64 * 2
    expected = 3 * 64 / 4096 * (12 + 16) * 4 / 3 / 30
    assert workers.bits == pytest.approx(expected), "bits a parameter and local step"


def test_what_is_held_back_comes_later() -> None:
    """Feedback on pseudo-gradients: what was applied and what is owed is all that a replica has moved."""
    workers = replicas(2, every=3, method="topk ratio=0.1")
    before = {name: p.detach().clone() for name, p in workers.outer.values.items()}
    moved = {name: torch.zeros_like(p) for name, p in before.items()}
    for start in (0, 3, 6):
        for step in range(start, start + 3):
            for rank in range(2):
                with workers.worker(rank) as (module, optimizer):
                    inner_step(module, optimizer, rank, step)
            if step == start + 2:
                for replica in workers._replicas:
                    for name, value in workers.outer.pseudo_gradient(replica[0]):
                        moved[name] += value / 2
            workers.step()
    applied = {name: before[name] - p.detach() for name, p in workers.outer.values.items()}
    owed = [s["outer/fragment0"]["tensors"]["residual"] for s in workers.state_dicts()]
    total_owed = sum(float(r.double().sum()) for r in owed) / 2
    total_moved = sum(float(m.double().sum()) for m in moved.values())
    total_applied = sum(float(a.double().sum()) for a in applied.values())
    assert total_applied + total_owed == pytest.approx(total_moved, abs=1e-4)
    assert abs(total_owed) > 1e-3, "something is owed"


def test_without_mixing_a_late_fragment_drops_the_steps_since_and_with_it_keeps_a_share() -> None:
    for mixing in (0.0, 0.25):
        workers = replicas(2, every=4, method="identity", overlap=2, mixing=mixing)
        train(workers, range(5))
        sent = {n: p.detach().clone() for n, p in workers.outer.values.items()}
        for rank in range(2):
            with workers.worker(rank) as (module, optimizer):
                inner_step(module, optimizer, rank, 5)
        own = [{n: p.detach().clone() for n, p in m.named_parameters()} for m in workers.models]
        assert workers.step() == ["fragment0"], "sent after step 4, applied after step 6"
        for rank, module in enumerate(workers.models):
            for name, outer in workers.outer.values.items():
                assert not torch.equal(outer, sent[name])
                expected = outer + mixing * (own[rank][name] - outer)
                torch.testing.assert_close(module.get_parameter(name).detach(), expected.detach())


def test_outer_parameters_are_lent_for_evaluation_and_synchronise_ends_with_one_model() -> None:
    workers = replicas(3, every=6, method="int8", fragments=2, overlap=4, outer_optimizer=cc.outer.nesterov())
    train(workers, range(7))
    own = [digest(m.parameters()) for m in workers.models]
    assert len(set(own)) == 3
    with workers.outer_parameters():
        lent = {digest(m.parameters()) for m in workers.models}
    assert len(lent) == 1
    assert [digest(m.parameters()) for m in workers.models] == own
    assert workers.synchronise() == ["fragment0", "fragment1"]
    assert len({digest(m.parameters()) for m in workers.models}) == 1
    assert workers.synchronise() == ["fragment0", "fragment1"]


def test_bfloat16_replicas_that_stand_still_send_zeros_and_small_steps_add_up() -> None:
    model = nn.Linear(8, 8, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    workers = cc.outer.VirtualReplicas(model, 2, sgd, "identity", every=1, outer_optimizer=cc.outer.averaging(0.25))
    (outer,) = workers.outer.values.values()
    assert outer.dtype == torch.float32
    for _ in range(3):
        workers.step()
    assert torch.equal(outer, torch.ones_like(outer))
    for _ in range(4):
        for module in workers.models:
            with torch.no_grad():
                module.weight.sub_(2**-8)
        workers.step()
    assert outer.detach().mean().item() < 1 - 2**-9, (
        "steps below bfloat16's resolution are not lost in the outer parameters"
    )


def test_states_move_to_another_number_of_replicas() -> None:
    settings: dict[str, Any] = {"every": 3, "method": "topk ratio=0.1", "outer_optimizer": cc.outer.nesterov()}
    old = replicas(2, **settings)
    train(old)
    new = replicas(3, **settings)
    with pytest.raises(ValueError, match="do not fit 3"):
        new.load_state_dicts(old.state_dicts())
    states = cc.reshard(old.state_dicts(), 3, keep="mean")
    new.load_state_dicts(states)
    new.restore()
    assert {digest(m.parameters()) for m in new.models} == {digest(m.parameters()) for m in old.models}
    assert new.inner_steps == STEPS
    owed = [sum(float(s["outer/fragment0"]["tensors"]["residual"].sum()) for s in w.state_dicts()) for w in (old, new)]
    assert owed[0] / 2 == pytest.approx(owed[1] / 3, rel=1e-4)
    train(new)


def test_a_resumed_run_that_forgets_its_steps_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of resuming in `test_real` would see it."""
    settings: dict[str, Any] = {"every": 4, "method": "topk ratio=0.1", "outer_optimizer": cc.outer.nesterov()}

    def resumed() -> tuple[str, str]:
        straight, other = replicas(2, **settings), replicas(2, **settings)
        train(straight, range(5))
        train(other, range(5))
        new = replicas(2, **settings)
        new.load_state_dicts(other.state_dicts())
        for mine, theirs in zip(new.models, other.models, strict=True):
            mine.load_state_dict(theirs.state_dict())
        for mine_too, theirs_too in zip(new.optimizers, other.optimizers, strict=True):
            mine_too.load_state_dict(theirs_too.state_dict())
        train(straight, range(5, 9))
        train(new, range(5, 9))
        return digest(straight.models[0].parameters()), digest(new.models[0].parameters())

    one, other = resumed()
    assert one == other
    load = Synchroniser._load

    def forgetful(self: Synchroniser, by_replica: Any) -> None:
        load(self, [{**saved, "step": 0} for saved in by_replica])

    monkeypatch.setattr(Synchroniser, "_load", forgetful)
    one, other = resumed()
    assert one != other
