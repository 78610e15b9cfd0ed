"""Proposals, void steps, children and streams of random numbers, by hand."""

from __future__ import annotations

import torch

from comm_compress.core.encoded import Field, Layout
from comm_compress.core.segments import segments_of
from comm_compress.core.state import State
from comm_compress.core.workspace import Workspace

CPU = torch.device("cpu")
YES, NO = torch.tensor(True), torch.tensor(False)


def proposed(state: State, value: float, finite: torch.Tensor = YES) -> None:
    """One collective that proposes ``value``."""
    state.begin(finite)
    state.propose("x", state.spare("x", torch.empty(2), torch.float32).fill_(value))
    state.end()


def test_a_proposal_takes_effect_with_the_next_use() -> None:
    state = State()
    assert state.get("x") is None
    proposed(state, 1)
    assert state.get("x") is None
    newest = state.newest("x")
    assert newest is not None
    assert newest.tolist() == [1, 1]
    proposed(state, 2)
    old = state.get("x")
    assert old is not None
    assert old.tolist() == [1, 1]
    assert state.state_dict()["x"].tolist() == [2, 2]
    assert state.state_dict()["tick"] == 2


def test_two_buffers_take_turns() -> None:
    state = State()
    seen = []
    for step in range(4):
        proposed(state, step)
        newest = state.newest("x")
        assert newest is not None
        seen.append(newest.data_ptr())
    assert seen[0] == seen[2] != seen[1] == seen[3]
    assert state.num_bytes == 2 * 8


def test_spares_of_another_shape_or_dtype_are_not_used() -> None:
    state = State()
    proposed(state, 1)
    proposed(state, 2)
    state.commit()
    assert state.spare("x", torch.empty(3), torch.float32).shape == (3,)
    proposed(state, 3)
    state.commit()
    assert state.spare("x", torch.empty(2), torch.bfloat16).dtype == torch.bfloat16


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    state = State()
    proposed(state, 1)
    proposed(state, 2, NO)
    proposed(state, 3)
    committed = state.get("x")
    assert committed is not None
    assert committed.tolist() == [1, 1]
    assert state.tick == 3, "it was a step all the same, unless it is rolled back"


def test_rollback_takes_back_one_collective_and_its_children_s() -> None:
    state = State("unit")
    proposed(state.child("part"), 5)
    proposed(state, 1)
    before = {name: tensor.clone() for name, tensor in state.state_dict().items()}
    state.begin(YES)
    state.propose("x", torch.zeros(2))
    state.child("part").propose("x", torch.zeros(2))
    state.rollback()
    state.rollback()  # nothing is under way: nothing more is taken back
    after = state.state_dict()
    assert after.keys() == before.keys() == {"tick", "x", "part/tick", "part/x"}
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_put_is_beyond_recall() -> None:
    state = State()
    state.begin(YES)
    state.put("x", torch.ones(1))
    state.rollback()
    assert state.get("x") is not None


def test_children_are_saved_loaded_and_counted_with_the_whole() -> None:
    segments = segments_of([("w", (4,))], 2)
    state = State("unit", 1, 2, 9)
    state.begin(YES)
    child = state.child("a").child("b", segments)
    assert (child.unit, child.rank, child.world, child.seed, child.tick) == ("unit/a/b", 1, 2, 9, 1)
    assert child.finite is YES
    child.propose("x", torch.ones(3))
    assert state.num_bytes == 12
    assert dict(state.layouts()) == {"": (), "a/": (), "a/b/": segments}
    assert [s.unit for s in state.with_children()] == ["unit", "unit/a", "unit/a/b"]
    copy = State("unit", 1, 2, 9)
    for step in range(3):  # so that it has a tick, a tensor and a spare one of its own
        proposed(copy, step)
    copy.commit()
    copy.load_state_dict(state.state_dict())
    assert copy.get("x") is None
    assert copy.num_bytes == 12
    loaded = copy.child("a").child("b")
    assert torch.equal(loaded.get("x"), torch.ones(3))  # type: ignore[arg-type]
    assert (copy.tick, loaded.tick) == (1, 1)
    copy.rollback()
    assert copy.tick == 1, "what was loaded is not under way"
    assert state.child("a", segments).segments == segments
    assert state.child("a").segments == segments


def test_every_purpose_tick_unit_seed_and_rank_has_its_own_stream() -> None:
    def key(unit: str = "u", rank: int = 0, seed: int = 0, tick: int = 1, purpose: str = "p", shared: bool = False):  # type: ignore[no-untyped-def]  # noqa: ANN202
        state = State(unit, rank, 2, seed)
        for _ in range(tick):
            state.begin()
        return state.key(purpose, shared)

    others = [key(unit="v"), key(rank=1), key(seed=1), key(tick=2), key(purpose="q"), key(shared=True)]
    assert len({key(), *others}) == 7
    assert key(shared=True) == key(rank=1, shared=True)
    assert key() == key()
    low, high = key()
    assert low != high
    assert max(low, high) < 2**32


def test_memory_of_a_collective() -> None:
    state, workspace = State(), Workspace()
    output = torch.empty(4)
    state.begin(YES, output, workspace)
    assert state.result((2, 2), CPU).data_ptr() == output.data_ptr()
    assert state.result((5,), CPU).data_ptr() != output.data_ptr(), "another size"
    scratch = state.scratch("a", (2,), torch.float32, CPU)
    assert scratch.data_ptr() == state.scratch("a", (2,), torch.float32, CPU).data_ptr()
    inner = state.child("part").scratch("a", (2,), torch.float32, CPU)
    assert inner.data_ptr() not in (
        scratch.data_ptr(),
        state.child("other").scratch("a", (2,), torch.float32, CPU).data_ptr(),
    )
    layout = Layout(Field("codes", torch.uint8, 3, "values"))
    message = state.message(torch.empty(2, 7), layout)
    assert (message.num_rows, message.n, message.layout) == (2, 7, layout)
    assert message.buffer.data_ptr() == state.message(torch.empty(2, 7), layout).buffer.data_ptr()
    held = workspace.num_bytes
    state.end()
    state.scratch("a", (200,), torch.float32, CPU)
    state.child("part").scratch("a", (200,), torch.float32, CPU)
    assert workspace.num_bytes == held, "the collective is over"
    assert state.output is None
    state.begin(YES, output.bfloat16())
    assert state.result((4,), CPU).dtype == torch.float32


def test_what_begins_after_a_child_was_made_begins_for_it_too() -> None:
    state, workspace = State(), Workspace()
    child = state.child("part")
    state.begin(NO, workspace=workspace)
    assert child.finite is NO
    assert child.tick == 1
    child.scratch("a", (3,), torch.uint8, CPU)
    assert workspace.num_bytes == 3
    child.propose("x", torch.ones(1))
    state.commit()
    assert child.get("x") is None
