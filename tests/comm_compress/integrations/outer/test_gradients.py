"""Parameters that go by their gradients: the algorithm written out by hand, broken versions, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import comm_compress as cc
from comm_compress.integrations.outer.gradients import AddedGradients
from tests.comm_compress.integrations.outer.training import (
    Net,
    adam,
    backward,
    digest,
    farthest,
    flat,
    inner_steps,
    loss_of,
    sgd,
    update,
)

STEPS, BY_GRADIENT = 12, ("first", "scale")
ALL = ("first", "norm", "frozen", "last", "scale")


def replicas(world: int, inner: Any = adam, **settings: Any) -> cc.outer.VirtualReplicas:
    torch.set_num_threads(1)
    given = {"every": 6, "gradient_every": 3, "by_gradient": BY_GRADIENT, "method": "identity", **settings}
    return cc.outer.VirtualReplicas(Net(dropout=0), world, inner, **given)


def train(workers: cc.outer.VirtualReplicas, steps: int = STEPS) -> None:
    for step in range(steps):
        inner_steps(workers, step)
        workers.step()


def by_hand(world: int) -> Net:
    """Local steps of AdamW and their mean every 6 steps; some parameters make one AdamW step in 3 instead, by the mean
    gradient of all replicas and of these steps."""
    models = [Net(dropout=0) for _ in range(world)]
    names = [n for n, p in models[0].named_parameters() if p.requires_grad]
    held = [n for n in names if n.split(".")[0] in BY_GRADIENT]
    own = [adam([p for n, p in model.named_parameters() if n in names and n not in held]) for model in models]
    shared = [adam([dict(model.named_parameters())[n] for n in held]) for model in models]
    sums = {name: torch.zeros(()) for name in held}
    for step in range(1, STEPS + 1):
        for rank, model in enumerate(models):
            model.zero_grad()
            loss_of(model, rank, step - 1).backward()
            own[rank].step()
            for name in held:
                sums[name] = sums[name] + _gradient(model, name) / (3 * world)
        if step % 3 == 0:
            for model, optimizer in zip(models, shared, strict=True):
                for name in held:
                    dict(model.named_parameters())[name].grad = sums[name].clone()
                optimizer.step()
            sums = {name: torch.zeros(()) for name in held}
        if step % 6 == 0:
            _average(models, [name for name in names if name not in held])
    return models[0]


def _gradient(model: nn.Module, name: str) -> Tensor:
    gradient = dict(model.named_parameters())[name].grad
    assert gradient is not None
    return gradient.clone()


@torch.no_grad()
def _average(models: Sequence[nn.Module], names: Sequence[str]) -> None:
    for name in names:
        mean = torch.stack([dict(model.named_parameters())[name] for model in models]).mean(0)
        for model in models:
            dict(model.named_parameters())[name].copy_(mean)


def far_from_by_hand(world: int, method: str | None = "identity", **settings: Any) -> float:
    """How far the last weights are from those of `by_hand`."""
    workers, expected = replicas(world, method=method, **settings), by_hand(world)
    train(workers)
    return farthest(workers.models, expected)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_some_go_by_their_gradients_and_all_others_by_local_steps(world: int) -> None:
    assert far_from_by_hand(world) < 1e-5
    assert far_from_by_hand(world, None) < 1e-5
    assert world == 1 or far_from_by_hand(world, "int4") > 1e-4, "the distance can be seen"


def test_gradients_go_by_a_method_of_their_own() -> None:
    def trained(**settings: Any) -> cc.outer.VirtualReplicas:
        workers = replicas(3, **settings)
        train(workers)
        return workers

    alike = trained(method="int8"), trained(method="int8", gradient_method="int8")
    assert digest(alike[0].models[0].parameters()) == digest(alike[1].models[0].parameters())
    assert far_from_by_hand(3, "identity", gradient_method="int4") > 1e-4
    assert far_from_by_hand(3, "int4", gradient_method="identity") > 1e-4
    ways: list[dict[str, Any]] = [{}, {"gradient_method": "int8"}]
    ledgers = [trained(exchange="all_gather", method="binned", **way).ledger for way in ways]
    local = [ledger.totals("outer", "fragment0").sent_bytes for ledger in ledgers]
    apart = [ledger.totals("outer", "gradients").sent_bytes for ledger in ledgers]
    assert local[0] == local[1] > 0
    assert apart[1] > 2 * apart[0], "by way of owners, 8 bits there and 32 back, instead of 2 bits to everyone"


def _only_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    take = AddedGradients.take

    def forgetting(self: AddedGradients) -> None:
        self.means()
        take(self)

    monkeypatch.setattr(AddedGradients, "take", forgetting)


def _a_sum_over_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    means = AddedGradients.means
    monkeypatch.setattr(AddedGradients, "means", lambda self: [(n, 3 * m) for n, m in means(self)])


def _its_own_gradient_too(monkeypatch: pytest.MonkeyPatch) -> None:
    take = AddedGradients.take

    def keeping(self: AddedGradients) -> None:
        kept = {p: p.grad for p in self.fragment.parameters.values()}
        take(self)
        for p, gradient in kept.items():
            p.grad = gradient

    monkeypatch.setattr(AddedGradients, "take", keeping)


def _never_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AddedGradients, "give", lambda self, means: None)


def _the_wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    give = AddedGradients.give
    monkeypatch.setattr(AddedGradients, "give", lambda self, means: give(self, [(n, -m) for n, m in means]))


@pytest.mark.parametrize(
    "sabotage", [_only_the_last_step, _a_sum_over_steps, _its_own_gradient_too, _never_given, _the_wrong_way]
)
def test_a_broken_version_is_far_from_it(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if sabotage is _a_sum_over_steps:  # AdamW does not see a factor
        monkeypatch.setattr(f"{__name__}.adam", sgd)
    sabotage(monkeypatch)
    assert far_from_by_hand(2) > 1e-3


@pytest.mark.parametrize("world", [2, 3])
def test_exchanged_at_every_step_plain_sgd_is_data_parallel_sgd(world: int) -> None:
    workers = replicas(world, sgd, every=1, gradient_every=None)
    train(workers)
    expected = Net(dropout=0)
    optimizer = sgd([p for p in expected.parameters() if p.requires_grad])
    for step in range(STEPS):
        for rank in range(world):
            (loss_of(expected, rank, step) / world).backward()
        update(optimizer)
    assert farthest(workers.models, expected) < 1e-6


@pytest.mark.parametrize(
    "settings", [{"method": "identity"}, {"method": None}, {"method": "int8", "all_gather": "int8"}]
)
def test_where_all_goes_by_gradients_it_is_data_parallel_training_with_larger_batches(settings: dict[str, Any]) -> None:
    """One AdamW step in three by the mean gradient of both replicas and of these steps; no replica goes alone."""
    workers = replicas(2, by_gradient=ALL, **settings)
    train(workers)
    assert workers.synchronise() == []
    expected = Net(dropout=0)
    optimizer = adam([p for p in expected.parameters() if p.requires_grad])
    for step in range(STEPS):
        for rank in range(2):
            (loss_of(expected, rank, step) / 6).backward()
        if step % 3 == 2:
            update(optimizer)
    assert farthest(workers.models, expected) < (1e-6 if settings["method"] != "int8" else 0.05)
    assert len({digest(list(model.parameters())) for model in workers.models}) == 1
    again = replicas(2, by_gradient=ALL, **settings)
    again.load_state_dicts(workers.state_dicts())
    with again.outer_parameters():
        assert again.inner_steps == STEPS


def test_what_goes_by_gradients_is_equal_after_every_step_and_moves_in_every_third() -> None:
    workers = replicas(3, method="int4")
    seen = []
    for step in range(STEPS):
        inner_steps(workers, step)
        workers.step()
        held = [digest([m.first.weight, m.first.bias, m.scale]) for m in workers.models]  # type: ignore[union-attr,list-item]
        assert len({*held}) == 1, step
        seen.append(held[0])
    changes = [step for step in range(1, STEPS) if seen[step] != seen[step - 1]]
    assert changes == [2, 5, 8, 11]


def test_in_the_last_step_gradients_are_exchanged_whenever_the_next_time_is_due() -> None:
    workers = replicas(2, gradient_every=5)
    before = digest([workers.models[0].scale])  # type: ignore[list-item]
    for rank in range(2):
        backward(workers.models[rank], rank, 0)
    assert workers.reduce_gradients(now=True)
    for optimizer in workers.optimizers:
        update(optimizer)
    workers.step()
    assert digest([workers.models[0].scale]) != before  # type: ignore[list-item]


def test_a_gradient_that_is_not_finite_on_one_replica_moves_nothing_on_any() -> None:
    workers = replicas(2, method="topk ratio=0.2", gradient_every=1)
    train(workers, 3)
    before, held = flat(copy.deepcopy({"0": workers.state_dicts()[0]})), digest([workers.models[0].first.weight])  # type: ignore[union-attr,list-item]
    for rank in range(2):
        backward(workers.models[rank], rank, 3)
    workers.models[1].scale.grad.fill_(torch.nan)  # type: ignore[union-attr,operator]
    assert not workers.reduce_gradients()
    assert all(p.grad is None for p in workers.by_gradient)
    for optimizer in workers.optimizers:
        update(optimizer)
    workers.step()
    assert digest([workers.models[0].first.weight]) == held  # type: ignore[union-attr,list-item]
    after = flat({"0": workers.state_dicts()[0]})
    changed = {key for key in before if before[key] != after.get(key)}
    assert changed == {"0/outer/step"}
    inner_steps(workers, 4)
    workers.step()
    assert digest([workers.models[0].first.weight]) != held  # type: ignore[union-attr,list-item]
    assert all(bool(torch.isfinite(p).all()) for m in workers.models for p in m.parameters())


def test_an_optimizer_step_without_the_exchange_is_an_error_and_a_skipped_one_is_not() -> None:
    workers = replicas(2)
    for rank in range(2):
        backward(workers.models[rank], rank, 0)
    with pytest.raises(RuntimeError, match=r"reduce_gradients\(\) before each optimizer step"):
        workers.step()
    workers.step(taken=False)
    assert workers.inner_steps == 1
    plain = replicas(2, by_gradient=(), gradient_every=None)
    assert plain.reduce_gradients()
    plain.step()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"by_gradient": ["nothing"]}, "'nothing' names no trainable parameter"),
        ({"by_gradient": ["frozen.weight"]}, "'frozen.weight' names no trainable parameter"),
        ({"by_gradient": ALL, "fragments": 2}, "fragments = 2"),
        ({"gradient_every": 0}, "gradient_every = 0: must be 1 step or more"),
        ({"gradient_every": "3"}, "gradient_every = '3': must be a whole number"),
        ({"by_gradient": ()}, "gradient_every = 3: nothing goes by its gradients"),
        (
            {"by_gradient": (), "gradient_every": None, "gradient_method": "int8"},
            "gradient_method: nothing goes by its gradients; name it in by_gradient",
        ),
        ({"gradient_method": "delta"}, "gradient_method: delta is for parameters"),
        ({"gradient_method": "no such"}, "gradient_method: "),
        ({"gradient_method": {"method": "int8", "layers": {"last.*": "int4"}}}, "last"),  # goes by local steps
    ],
)
def test_what_cannot_go_by_gradients_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replicas(2, **settings)


def test_states_of_other_parameters_are_refused_and_sums_move_to_other_replicas_by_their_mean() -> None:
    old, new = replicas(2), replicas(3)
    train(old, 4)  # one step into the next three
    states = old.state_dicts()
    with pytest.raises(ValueError, match="other parameters"):
        replicas(2, by_gradient=["last"]).load_state_dicts(states)
    without = [{**one, "outer": {k: v for k, v in one["outer"].items() if k != "gradients"}} for one in states]
    with pytest.raises(ValueError, match="other parameters went by their gradients"):
        replicas(2).load_state_dicts(without)
    assert [one["outer"]["gradients"]["steps"] for one in cc.reshard(states, 2)] == [1, 1]
    torch.testing.assert_close(cc.reshard(states, 2)[1]["outer"], states[1]["outer"], rtol=0, atol=0)
    moved = cc.reshard(states, 3, keep="mean")
    new.load_state_dicts(moved)
    expected = torch.stack([one["outer"]["gradients"]["sums"]["scale"] for one in states]).mean()
    for one in new.state_dicts():
        assert one["outer"]["gradients"]["sums"]["scale"] == expected
