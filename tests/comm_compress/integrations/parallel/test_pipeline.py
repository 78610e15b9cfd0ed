"""Pipelines on two real ranks: identity against torch's own stage, bytes against what schedules post, and refusals."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
    schedules,
)

import comm_compress as cc
from tests.distributed import run_ranks

WIDTH, MICRO_BATCHES, BATCH = 16, 4, 8
VARYING = ("identity entropy=rans", "int8 entropy=rans", "ecsq no feedback")  # in bytes
SCHEDULES: dict[str, tuple[type, list[list[int]]]] = {  # and which stages each rank has
    "gpipe": (ScheduleGPipe, [[0], [1]]),
    "1f1b": (Schedule1F1B, [[0], [1]]),
    "interleaved": (ScheduleInterleaved1F1B, [[0, 2], [1, 3]]),
    "zbv": (ScheduleZBVZeroBubble, [[0, 3], [1, 2]]),
}
if torch.__version__ < "2.13":  # torch 2.11: its first step fails over gloo, without compression, too
    del SCHEDULES["zbv"]


class Part(nn.Module):
    def __init__(self, index: int, nan: bool = False) -> None:
        super().__init__()
        torch.manual_seed(index)
        self.linear, self.nan = nn.Linear(WIDTH, WIDTH), nan

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x.float())).to(x.dtype)
        return torch.where(torch.arange(y.shape[-1]) == 3, torch.nan, y) if self.nan else y


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return (output.float() - target).square().mean()


class Counter:
    """Counts the bytes of all sends that schedules post, apart from the ledger."""

    def __init__(self) -> None:
        self.sent, self._post = 0, schedules._batch_p2p

    def __enter__(self) -> Counter:
        schedules._batch_p2p = self._count
        return self

    def __exit__(self, *args: object) -> None:
        schedules._batch_p2p = self._post

    def _count(self, ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
        # the schedules also post a number of a float each, once, before their first step
        self.sent += sum(op.tensor.nbytes for op in ops if op.op is dist.isend and op.tensor.numel() > 1)
        return self._post(ops, desc)


def run(name: str, activations: Any, stage_class: Any = None, dtype: torch.dtype = torch.float32, **parts: Any) -> Any:
    """Two steps; the losses of both, and all gradients, by parameter, of this rank's stages."""
    schedule_class, ranks = SCHEDULES[name]
    mine, number = ranks[dist.get_rank()], sum(map(len, ranks))
    stages: list[Any] = []
    for index in mine:
        arguments: Any = (Part(index, **parts if index == 0 else {}), index, number, torch.device("cpu"))
        if activations is None:
            stages.append(PipelineStage(*arguments))
        else:
            stages.append((stage_class or cc.parallel.CompressedStage)(*arguments, activations=activations))
    schedule: Any = schedule_class(stages if number > 2 else stages[0], MICRO_BATCHES, loss_fn=loss_of)
    generator = torch.Generator().manual_seed(7)
    losses: list[Tensor] = []
    for _ in range(2):
        x, target = (torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))
        last = number - 1 in mine
        seen: list[Tensor] = []
        schedule.step(*([x.to(dtype)] if 0 in mine else []), **({"target": target, "losses": seen} if last else {}))
        losses += seen
    gradients = {f"{stage.stage_index}.{key}": p.grad for stage in stages for key, p in stage.submod.named_parameters()}
    return [loss.detach() for loss in losses], gradients


def same(a: Any, b: Any) -> bool:
    (some, gradients), (others, expected) = a, b
    return (
        len(some) == len(others)
        and all(torch.equal(x, y) for x, y in zip(some, others, strict=True))
        and gradients.keys() == expected.keys()
        and all(torch.equal(g, expected[key]) for key, g in gradients.items())
    )


class WrongMicroBatch(cc.parallel.CompressedStage):
    """Uses the first micro-batch's gradient for the second, and the other way round."""

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return super().get_bwd_recv_ops(bwd_chunk_id ^ 1)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        self._decode(self._behind.backward, "backward", bwd_chunk_id ^ 1)  # type: ignore[union-attr]
        return super()._retrieve_recv_grads(bwd_chunk_id)


class TooEarly(cc.parallel.CompressedStage):
    """Decodes before the message has arrived."""

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_fwd_recv_ops(fwd_chunk_id)
        for op in ops:
            op.tensor.zero_()
        if self._before is not None:
            self._decode(self._before.forward, "forward", fwd_chunk_id)
        return ops


def _laws() -> dict[str, Any]:
    identity = lambda: cc.parallel.Activations("identity", "identity")  # noqa: E731
    found: dict[str, Any] = {"equal": {}, "bytes": {}, "caught": {}}
    for name in SCHEDULES:
        for dtype in (torch.float32, torch.bfloat16):
            stock = run(name, None, dtype=dtype)
            found["equal"][name, str(dtype)] = same(run(name, identity(), dtype=dtype), stock)
            lossless = cc.parallel.Activations("identity entropy=rans", "identity entropy=zstd")
            found["equal"][name, str(dtype), "coded"] = same(run(name, lossless, dtype=dtype), stock)
            found["equal"][name, str(dtype), "none"] = same(run(name, cc.parallel.Activations(), dtype=dtype), stock)
        for label in ("identity", "int8 block_size=8", "tahquant tile_size=8", "topk ratio=0.25 no feedback", *VARYING):
            activations = cc.parallel.Activations(label, "bf16")
            with Counter() as counter:
                run(name, activations)
            totals = {op: activations.ledger.totals(op) for op in ("activations", "activation_gradients")}  # type: ignore[arg-type]
            found["bytes"][name, label] = (counter.sent, {op: t.sent_bytes for op, t in totals.items()})
            found.setdefault("elements", {})[name] = {op: t.elements for op, t in totals.items()}
            found.setdefault("units", {})[name] = sorted(activations.ledger.state_dict())
    stock = run("gpipe", None)
    for broken in (WrongMicroBatch, TooEarly):
        found["caught"][broken.__name__] = not same(run("gpipe", identity(), broken), stock)
    activations = cc.parallel.Activations("int4", "int4")
    found["int4"] = not same(run("gpipe", activations), stock)
    before = activations.ledger.totals().calls
    with activations.exact():  # the same places, another stage
        found["exact"] = same(run("gpipe", activations), stock) and activations.ledger.totals().calls == before > 0
    by_place = {"method": "int4", "layers": {"stage0->1": "identity"}}
    activations = cc.parallel.Activations(by_place, by_place)
    found["by place"] = same(run("gpipe", activations), stock)
    activations.check_names()
    losses, _ = run("1f1b", cc.parallel.Activations("int8", "int8"), nan=True)
    found["nan"] = [bool(torch.isnan(loss)) for loss in losses]
    return found


@pytest.fixture(scope="module")
def laws() -> list[dict[str, Any]]:
    return run_ranks(2, _laws)


def test_identity_and_no_method_are_torchs_own_stage_bit_for_bit(laws: list[dict[str, Any]]) -> None:
    for found in laws:
        assert all(found["equal"].values()), found["equal"]
        assert len(found["equal"]) == 6 * len(SCHEDULES)


def test_bytes_counted_are_those_that_schedules_send(laws: list[dict[str, Any]]) -> None:
    for found in laws:
        for case, (sent, counted) in found["bytes"].items():
            assert sent == sum(counted.values()) > 0, case
    for name in SCHEDULES:
        both = [found["elements"][name] for found in laws]
        crossed = 2 if name == "zbv" else len(SCHEDULES[name][1][0]) * 2 - 1
        for op in ("activations", "activation_gradients"):
            assert sum(elements[op] for elements in both) == 2 * BATCH * WIDTH * crossed, (name, op)
    if "zbv" in SCHEDULES:
        assert laws[0]["units"]["zbv"] == [
            f"{op}/stage{a}->{a + 1}" for op in ("activation_gradients", "activations") for a in (0, 2)
        ], "between stages of one rank nothing travels"


def test_wrong_wirings_are_seen(laws: list[dict[str, Any]]) -> None:
    caught = [found["caught"] for found in laws]
    assert {name for name in caught[0] if any(each[name] for each in caught)} == {"WrongMicroBatch", "TooEarly"}


def test_exact_sends_as_torch_does_and_layers_name_places(laws: list[dict[str, Any]]) -> None:
    assert any(found["int4"] for found in laws), "the method changes numbers"
    for found in laws:
        assert found["exact"]
        assert found["by place"]


def test_a_nan_travels(laws: list[dict[str, Any]]) -> None:
    assert laws[1]["nan"] == [True] * 2 * MICRO_BATCHES


def _refusals() -> list[str]:
    said = []
    device, rank = torch.device("cpu"), dist.get_rank()
    memory = cc.parallel.SampleMemory()
    cases: Any = [("int8 entropy=rans", None, "cuda", None), (None, "int8 warmup_steps=2", "cpu", None)]
    cases += [("int8 entropy=rans", None, "cpu", memory)]
    for forward, backward, kind, remembered in cases:
        activations = cc.parallel.Activations(forward, backward, memory=remembered)
        with pytest.raises(ValueError, match="stage0->1") as refused:
            cc.parallel.CompressedStage(Part(rank), rank, 2, torch.device(kind), activations=activations)
        said.append(str(refused.value))
    stage = cc.parallel.CompressedStage(Part(0), 0, 2, device, activations=cc.parallel.Activations("int8"))
    stage.act_send_info = {0: [1]}
    for number, tensor in enumerate((torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(2, 4, dtype=torch.long))):
        stage.fwd_cache[number] = ((tensor,), [])
    stage.get_fwd_send_ops(0)
    for number in (1, 2):
        with pytest.raises(ValueError, match="stage0->1") as refused:
            stage.get_fwd_send_ops(number)
        said.append(str(refused.value))
    return said


def test_what_cannot_travel_is_refused_with_one_message() -> None:
    entropy, warmup, memory, shape, dtype = run_ranks(2, _refusals)[0]
    assert "forward: int8 cannot carry messages between stages on cuda" in entropy
    assert "backward: int8 cannot carry messages between stages: give a method that encodes row by row" in warmup
    assert "forward: int8 cannot carry messages between stages as changes of samples" in memory
    assert "a micro-batch of shape (3, 4) after one of (2, 4)" in shape
    assert "a tensor of torch.int64 cannot travel here" in dtype


class Forgets(cc.parallel.CompressedStage):
    """What receives does not remember what it decoded of the second micro-batch."""

    def _decode(self, way: Any, kind: Any, chunk: int) -> None:
        tensors = dict(way.state._tensors)
        super()._decode(way, kind, chunk)
        if kind == "forward" and chunk == 1:
            way.state._tensors = {name: tensors.get(name, t) for name, t in way.state._tensors.items()}


class ByPosition(cc.parallel.CompressedStage):
    """Remembers activations by their place in the batch."""

    def samples(self, ids: Tensor) -> None:
        super().samples(torch.arange(len(ids)))


class Training:
    """A pipeline over 16 samples, half of them a step, in another order in every pass."""

    def __init__(self, name: str, activations: Any, rate: float = 0.2, stage_class: Any = None) -> None:
        schedule_class, ranks = SCHEDULES[name]
        self.mine, self.number = ranks[dist.get_rank()], sum(map(len, ranks))
        self.activations, self.stages = activations, list[Any]()
        for index in self.mine:
            arguments: Any = (Part(index), index, self.number, torch.device("cpu"))
            chosen = PipelineStage if activations is None else stage_class or cc.parallel.CompressedStage
            self.stages.append(chosen(*arguments, **({"activations": activations} if activations else {})))
        self.schedule: Any = schedule_class(
            self.stages if self.number > 2 else self.stages[0], MICRO_BATCHES, loss_fn=loss_of
        )
        self.optimizer = torch.optim.SGD([p for stage in self.stages for p in stage.submod.parameters()], rate)
        self.x, self.target = torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(3))

    def step(self, ids: Tensor, update: bool = True) -> list[Tensor]:
        if self.activations is not None:
            for stage in self.stages:
                stage.samples(ids)
        seen: list[Tensor] = []
        last = self.number - 1 in self.mine
        self.schedule.step(
            *([self.x[ids]] if 0 in self.mine else []), **({"target": self.target[ids], "losses": seen} if last else {})
        )
        if update:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return [loss.detach() for loss in seen]

    def passes(self, numbers: Sequence[int]) -> list[Tensor]:
        orders = [torch.randperm(16, generator=torch.Generator().manual_seed(n)) for n in numbers]
        return [loss for order in orders for half in order.chunk(2) for loss in self.step(half)]

    def memory(self) -> dict[str, Tensor]:
        """What this rank remembers, by the place and the sample."""
        saved = self.activations.state_dict()
        return {
            f"{unit}/{name}": t.clone()
            for unit, state in saved.items()
            for name, t in state["tensors"].items()
            if name.startswith("tensor")
        }


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(x, y) for x, y in zip(some, others, strict=True))


def _same_memory(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(t, b[name]) for name, t in a.items())


def _by_sample(forward: str = "int4 block_size=8") -> Any:
    return cc.parallel.Activations(forward, "identity", memory=cc.parallel.SampleMemory())


def _remembering() -> dict[str, Any]:
    found: dict[str, Any] = {"lossless": [], "still": [], "first": [], "later": [], "bytes": [], "memories": {}}
    passes = (0, 1)
    for name in SCHEDULES:
        stock = Training(name, None).passes(passes)
        first = len(stock) // 2
        found["lossless"].append(_equal(Training(name, _by_sample("identity")).passes(passes), stock))
        training = Training(name, _by_sample())
        with Counter() as counter:
            losses = training.passes(passes)
        found["bytes"].append((counter.sent, training.activations.ledger.totals().sent_bytes))
        found["first"].append(_equal(losses[:first], stock[:first]))
        found["later"].append(_equal(losses[first:], stock[first:]))
        found["memories"][name] = training.memory()
        found["still"].append(
            _equal(Training(name, _by_sample(), 0).passes(passes), Training(name, None, 0).passes(passes))
        )
    by_position = Training("gpipe", _by_sample(), 0, ByPosition)
    found["by position"] = _equal(by_position.passes(passes), Training("gpipe", None, 0).passes(passes))
    forgetful = Training("1f1b", _by_sample(), 0.2, Forgets)
    forgetful.passes(passes)
    found["memories"]["forgets"] = forgetful.memory()
    found["memories"] = {key: {n: t.tolist() for n, t in m.items()} for key, m in found["memories"].items()}
    found["state bytes"] = forgetful.activations.state_bytes
    found.update(_going_on())
    return found


def _going_on() -> dict[str, Any]:
    """Save in the middle and go on, by another process's objects; a void step; exact evaluation."""
    training = Training("1f1b", _by_sample())
    training.passes([0, 1])
    saved, weights = copy.deepcopy(training.activations.state_dict()), copy.deepcopy(training.stages[0].submod)
    expected = training.passes([2])
    found: dict[str, Any] = {}
    for key, states in (("resumed", saved), ("not resumed", None)):
        again = Training("1f1b", _by_sample())
        again.stages[0].submod.load_state_dict(weights.state_dict())
        if states is not None:
            again.activations.load_state_dict(states)
        found[key] = _equal(again.passes([2]), expected)
    before = training.memory()
    training.step(torch.arange(8), update=False)
    training.step(torch.arange(4, 12), update=False)
    changed = {key: state.get("tensor0.sample5") for key, state in training.activations._states().items()}
    found["changed"] = not torch.equal(
        changed["activations/stage0->1"],
        before["activations/stage0->1/tensor0.sample5"],  # type: ignore[arg-type]
    )
    training.activations.rollback()
    found["taken back"] = _same_memory(training.memory(), before)
    with training.activations.exact():
        training.schedule.eval(*([training.x[:8]] if 0 in training.mine else []), **_target(training))
    found["exact"] = _same_memory(training.memory(), before)
    with pytest.raises(ValueError, match=r"stage0->1: .* call stage\.samples\(ids\) on every rank") as refused:
        training.schedule.step(*([training.x[:8]] if 0 in training.mine else []), **_target(training))
    found["missing"] = str(refused.value)
    training.stages[0].samples(torch.arange(7))
    with pytest.raises(ValueError, match="stage0->1: 7 samples, and micro-batches of 2 rows, 4 in a batch"):
        training.schedule.step(*([training.x[:8]] if 0 in training.mine else []), **_target(training))
    with pytest.raises(ValueError, match="place 'x': memory is for the stages of a pipeline"):
        training.activations.place("x", dist.group.WORLD)
    return found


def _target(training: Training) -> dict[str, Any]:
    return {"target": training.target[:8], "losses": []} if 1 in training.mine else {}


@pytest.fixture(scope="module")
def remembering() -> list[dict[str, Any]]:
    return run_ranks(2, _remembering)


def test_changes_by_sample_are_stocks_numbers_where_nothing_is_lost(remembering: list[dict[str, Any]]) -> None:
    for found in remembering:
        assert found["lossless"] == [True] * len(SCHEDULES)
        assert found["first"] == [True] * len(SCHEDULES), "whole at the first visit"
        assert found["still"] == [True] * len(SCHEDULES), "activations of a sample that do not change are the memory"
    last_stage = [0 if name == "zbv" else 1 for name in SCHEDULES]
    assert [remembering[rank]["later"][i] for i, rank in enumerate(last_stage)] == [False] * len(SCHEDULES), (
        "the method changes numbers"
    )
    assert not remembering[1]["by position"], "a memory by position is not one by sample"


def test_both_sides_of_a_boundary_remember_the_same(remembering: list[dict[str, Any]]) -> None:
    for name in SCHEDULES:
        mine, theirs = (found["memories"][name] for found in remembering)
        places = {"gpipe": 1, "1f1b": 1, "interleaved": 3, "zbv": 2}[name]
        assert len(mine) == 16 * places
        assert mine == theirs, name
        for found in remembering:
            sent, counted = found["bytes"][list(SCHEDULES).index(name)]
            assert sent == counted > 0
    mine, theirs = (found["memories"]["forgets"] for found in remembering)
    assert mine.keys() == theirs.keys()
    assert mine != theirs, "a receiver that forgets an update is seen"
    assert [found["state bytes"] for found in remembering] == [16 * WIDTH * 4] * 2


def test_a_memory_is_saved_taken_back_and_asked_for_samples(remembering: list[dict[str, Any]]) -> None:
    assert remembering[1]["resumed"]
    assert not remembering[1]["not resumed"], "without its memory it goes on otherwise"
    for found in remembering:
        assert found["changed"]
        assert found["taken back"]
        assert found["exact"]
        assert "nobody said which samples" in found["missing"]
