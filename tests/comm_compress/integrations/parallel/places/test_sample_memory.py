"""Activations as changes of each sample: both sides of a boundary in one process, by every method that can."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core.compressor import Codec
from comm_compress.core.state import State
from comm_compress.integrations.parallel.places.methods import refusal
from comm_compress.integrations.parallel.places.sample_memory import ChangesBySample, SampleMemory, StepSamples
from tests.comm_compress.table import TABLE, build

SHAPE = (6, 40)  # of one sample
CARRIERS = [
    (name, config)
    for name, config in TABLE
    if isinstance(method := build(name, config), Codec) and method.fixed_size and not refusal(method)
]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Boundary:
    """A sender and a receiver, each with a memory of its own."""

    def __init__(self, method: cc.Compressor, memory: SampleMemory | None = None) -> None:
        assert isinstance(method, Codec)
        self.states = [State("activations/stage0->1", rank, 2, lasting=False) for rank in (0, 1)]
        self.sender, self.receiver = (ChangesBySample(method, memory or SampleMemory(), s) for s in self.states)

    def send(self, samples: list[int], tensor: Tensor, goes_on: bool = False) -> tuple[Tensor, int]:
        """What arrives, and the bytes of the message, which both sides knew before."""
        for state in self.states:
            state.begin(goes_on=goes_on)
        out = torch.full_like(tensor, math.nan)
        expected = [side.byte_count(0, samples, out).total for side in (self.sender, self.receiver)]
        message = self.sender.encode(0, samples, tensor)
        assert expected == [message.numel()] * 2
        self.receiver.decode_into(0, samples, message, out)
        return out, message.numel()

    def memories(self) -> list[dict[str, Tensor]]:
        return [{k: t.clone() for k, t in state.state_dict().items() if k != "tick"} for state in self.states]


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(t, b[key]) for key, t in a.items())


def activations(samples: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(samples, *SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("number", "name", "config"), [(i, *row) for i, row in enumerate(CARRIERS)], ids=str)
def test_both_sides_remember_the_same_and_first_visits_are_exact(
    number: int, name: str, config: dict[str, Any]
) -> None:
    memory, dtype = list(DTYPES.items())[number % 3]
    boundary = Boundary(build(name, config), SampleMemory(memory))  # type: ignore[arg-type]
    first = activations(4, 0, dtype)
    out, size = boundary.send([3, 8, 1, 5], first)
    assert torch.equal(out, first)
    assert size == first.nbytes
    for samples, seed in (([8, 9, 3], 1), ([9, 3, 8], 2), ([1, 2], 3)):  # known and new ones together
        boundary.send(samples, activations(len(samples), seed, dtype))
        sender, receiver = boundary.memories()
        assert equal(sender, receiver)
    assert {key for key, t in sender.items() if t.numel()} == {f"tensor0.sample{i}" for i in (1, 2, 3, 5, 8, 9)}
    held = 6 * math.prod(SHAPE) * dtype.itemsize
    assert [state.num_bytes for state in boundary.states] == [held] * 2, "state_dict let the old versions go"


@pytest.mark.parametrize(("name", "config"), CARRIERS, ids=str)
def test_the_error_shrinks_while_activations_do_not_change(name: str, config: dict[str, Any]) -> None:
    boundary, old, target = Boundary(build(name, config)), activations(2, 0), activations(2, 1)
    boundary.send([7, 2], old)
    errors = [float((target - boundary.send([7, 2], target)[0]).norm()) for _ in range(6)]
    if errors[0] < 0.75 * float((target - old).norm()):
        assert errors[-1] < max(0.5 * errors[0], 1e-6)
    else:
        stochastic = name in ("qsgd", "terngrad") or config.get("rounding") == "stochastic"
        assert stochastic, "only stochastic rounding to few levels loses as much as it is given"
    if name in ("int8", "int4", "uniform") and not config:
        assert errors[-1] < 1e-3 * errors[0]


def test_memory_belongs_to_the_sample_not_to_its_place_in_the_batch() -> None:
    boundary, x = Boundary(build("int4", {})), activations(4, 0)
    boundary.send([0, 1, 2, 3], x)
    order = [2, 0, 3, 1]
    for _ in range(2):
        assert torch.equal(boundary.send(order, x[order])[0], x[order]), "no change, so nothing is lost"


def test_several_tensors_have_memories_of_their_own() -> None:
    boundary = Boundary(build("int4", {}))
    sizes = [boundary.sender.byte_count(number, [1], torch.empty(1, 64)).total for number in (0, 1)]
    boundary.send([1], torch.randn(1, 64))
    after = [boundary.sender.byte_count(number, [1], torch.empty(1, 64)).total for number in (0, 1)]
    assert after[0] < sizes[0] == sizes[1] == after[1]


@pytest.mark.parametrize("memory", ["fp32", "fp16"])
def test_what_is_not_finite_arrives_and_is_forgotten(memory: Any) -> None:
    boundary, x = Boundary(build("int4", {}), SampleMemory(memory)), activations(3, 0, torch.float16)
    whole = boundary.send([0, 1, 2], x)[1]
    known = boundary.send([0, 1, 2], x)[1]
    broken = x.clone()
    broken[1, 2, 3] = math.nan
    out, _ = boundary.send([0, 1, 2], broken)
    assert [bool(torch.isfinite(row).all()) for row in out] == [True, False, True]
    out, size = boundary.send([0, 1, 2], x)
    assert known < size < whole, "one sample travels whole again"
    assert torch.equal(out[1], x[1])
    assert equal(*boundary.memories())


def test_more_than_the_memory_holds_travels_whole_each_time() -> None:
    boundary, x = Boundary(build("int4", {}), SampleMemory("fp16")), torch.full((1, *SHAPE), 1e6)
    for _ in range(3):
        out, size = boundary.send([0], x)
        assert torch.equal(out, x)
        assert size == x.nbytes


def test_a_void_step_is_taken_back_and_a_saved_memory_goes_on() -> None:
    boundary = Boundary(build("int8", {"rounding": "stochastic"}))
    boundary.send([0, 1], activations(2, 0))
    boundary.send([0, 1], activations(2, 1))
    before = boundary.memories()
    saved = [{key: t.clone() for key, t in state.state_dict().items()} for state in boundary.states]
    voided, _ = boundary.send([1, 2], activations(2, 2))
    boundary.send([0, 3], activations(2, 3), goes_on=True)
    for state in boundary.states:
        state.rollback()
    assert [equal(a, b) for a, b in zip(boundary.memories(), before, strict=True)] == [True, True]
    assert torch.equal(boundary.send([1, 2], activations(2, 2))[0], voided), "as if it had never been sent"
    resumed = Boundary(build("int8", {"rounding": "stochastic"}))
    for state, tensors in zip(resumed.states, saved, strict=True):
        state.load_state_dict(tensors)
    assert torch.equal(resumed.send([1, 2], activations(2, 2))[0], voided), "from what was saved"
    assert [equal(a, b) for a, b in zip(resumed.memories(), boundary.memories(), strict=True)] == [True, True]


def test_a_side_that_forgets_an_update_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    boundary, x = Boundary(build("int4", {})), activations(2, 0)
    boundary.send([0, 1], x)
    boundary.receiver._remember = lambda *a: None  # type: ignore[method-assign]
    target = activations(2, 1)
    errors = [float((target - boundary.send([0, 1], target)[0]).norm()) for _ in range(4)]
    assert not equal(*boundary.memories())
    assert errors[-1] > errors[0], "the changes of later visits are of another memory"


def test_rows_without_elements() -> None:
    boundary = Boundary(build("int8", {}))
    for _ in range(2):
        out, size = boundary.send([0, 1], torch.empty(2, 0))
        assert out.shape == (2, 0)
        assert size == 0


def test_refusals() -> None:
    for arguments, what in (
        ({"dtype": "int8"}, "memory: dtype = 'int8': must be one of fp32, bf16, fp16"),
        ({"device": "nowhere"}, "memory: device = 'nowhere'"),
    ):
        with pytest.raises(ValueError, match=what):
            SampleMemory(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="memory: a method of forward is needed"):
        cc.parallel.Activations(None, "int8", memory=SampleMemory())
    step = StepSamples()
    step.chunks.add(2)
    for ids, what in (
        ([1, 2], "samples: list: must be an int64 tensor"),
        (torch.zeros(2), r"torch.float32 of shape \(2,\)"),
        (torch.zeros(2, 2, dtype=torch.int64), r"of shape \(2, 2\)"),
        (torch.tensor([4, 3, 4]), "samples: 4 is there twice"),
    ):
        with pytest.raises(ValueError, match=what):
            step.set(ids)  # type: ignore[arg-type]
    rows = [torch.Size([2, 5])]
    with pytest.raises(ValueError, match=r"stage0->1: .* call stage\.samples\(ids\)"):
        step.of("stage0->1", 0, rows)
    for count in (3, 2, 8):
        step.set(torch.arange(count))
        with pytest.raises(ValueError, match=f"stage0->1: {count} samples, and micro-batches of 2 rows, 2 in a batch"):
            step.of("stage0->1", 0, rows)
    step.set(torch.tensor([5, 6, 7, 8]))
    assert [step.of("stage0->1", chunk, rows) for chunk in (1, 0)] == [[7, 8], [5, 6]]
    assert step.of("stage1->2", 0, rows) == [5, 6]
    with pytest.raises(ValueError, match="nobody said which samples"):
        step.of("stage0->1", 0, rows)  # the next step's
