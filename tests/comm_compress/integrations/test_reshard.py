"""States for another number of ranks."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import comm_compress as cc
from comm_compress.core.segments import flatten, segments_of, unflatten
from comm_compress.core.state import State
from comm_compress.integrations.handle import save
from comm_compress.wrappers.error_feedback import from_int8, to_int8
from tests.comm_compress.integrations.test_fsdp import batch, gradients, loss_of, sharded
from tests.distributed import run_ranks

Saved = list[dict[str, dict[str, Any]]]
SHAPES = [("a", (7, 3)), ("b", (2,)), ("c", (5, 2, 2))]


def trained(world: int, method: dict[str, Any], shapes: list[int] | None = None) -> Saved:
    """States after three steps of virtual ranks over odd shapes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 5), nn.Linear(5, 1))
    settings = {k: v for k, v in method.items() if k != "method"}
    ranks = cc.VirtualRanks(model, world, ["1"], reduce_scatter=cc.make(method["method"], settings))
    for step in range(3):
        model.zero_grad()
        for rank in range(world):
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))
            model(x).square().mean().backward()
            ranks.collect(rank)
        ranks.reduce()
    return ranks.state_dicts()


def totals(states: Saved) -> dict[str, Tensor]:
    """The residuals' sums over ranks by unit, parameter and coordinate: what must be kept."""
    found: dict[str, Tensor] = {}
    for key, entry in states[0].items():
        for prefix, layout in entry["layouts"].items():
            segments = segments_of([(n, tuple(s)) for n, s in layout], len(states))
            rows = [s[key]["tensors"].get(f"{prefix}residual") for s in states]
            if segments and all(r is not None for r in rows):
                total = torch.stack([r.double() for r in rows if r is not None]).sum(0)
                for segment, tensor in zip(segments, unflatten(total, segments), strict=True):
                    found[f"{key}/{prefix}{segment.name}"] = tensor
    return found


METHODS = [
    {"method": "topk", "ratio": 0.2},
    {"method": "topk", "ratio": 0.2, "layers": {"*.bias": {"method": "int8", "error_feedback": True}}},
    {"method": "int8", "error_feedback": {"dtype": "bf16"}},
]


@pytest.mark.parametrize("method", METHODS, ids=["topk", "layers", "bf16"])
@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (4, 1), (1, 4)])
def test_the_residuals_sum_is_kept_per_coordinate(old: int, new: int, method: dict[str, Any]) -> None:
    states = trained(max(old, 2), method) if old > 1 else cc.reshard(trained(2, method), 1)
    before, moved = totals(states), cc.reshard(states, new)
    after = totals(moved)
    rounding = 2**-8 if "error_feedback" in method else 1e-6
    assert before
    assert before.keys() == after.keys()
    assert any(float(t.abs().max()) > 0 for t in before.values())
    for k, t in before.items():
        torch.testing.assert_close(after[k], t, rtol=rounding, atol=rounding * float(t.abs().max()))
    ticks = {int(t) for s in moved for e in s.values() for n, t in e["tensors"].items() if n.endswith("tick")}
    assert ticks == {3}


def test_the_mean_is_kept_where_asked() -> None:
    states = trained(4, METHODS[0])
    before, after = totals(states), totals(cc.reshard(states, 2, keep="mean"))
    for k, t in before.items():
        torch.testing.assert_close(after[k] / 2, t / 4, rtol=1e-6, atol=1e-9)


def test_as_many_ranks_as_before_is_bit_for_bit_the_same() -> None:
    states = trained(2, METHODS[1])
    for old, new in zip(states, cc.reshard(states[::-1], 2), strict=True):
        assert old.keys() == new.keys()
        for k in old:
            assert all(torch.equal(old[k]["tensors"][n], t) for n, t in new[k]["tensors"].items())


@settings(max_examples=40, deadline=None)
@given(old=st.integers(1, 5), new=st.integers(1, 5), rows=st.integers(1, 9), columns=st.integers(1, 4))
def test_rules_for_every_kind_of_tensor(old: int, new: int, rows: int, columns: int) -> None:
    """A momentum in rows is shared out; what all agree on stays; what is shaped by the old size is left out."""
    shapes = [("w", (rows, columns)), ("b", (rows,))]
    segments = segments_of(shapes, old)
    generator = torch.Generator().manual_seed(rows)
    states: Saved = []
    momenta = []
    for rank in range(old):
        state = State("u", rank, old, 0, segments)
        momenta.append([torch.randn(s, generator=generator) for _, s in shapes])
        state.put("momentum", flatten(momenta[-1], old))
        state.put("basis", torch.arange(100 * 77.0).view(100, 77))
        state.put("mine", torch.full((100,), float(rank)))
        states.append({"reduce_scatter/u": save(state)})
    if new != old and old > 1:
        with pytest.warns(UserWarning, match="mine"):
            moved = cc.reshard(states, new)
    else:
        moved = cc.reshard(states, new)
    assert len(moved) == new
    after = segments_of(shapes, new)
    total = sum(
        torch.cat([t.flatten() for t in unflatten(s["reduce_scatter/u"]["tensors"]["momentum"], after)]) for s in moved
    )
    expected = sum(torch.cat([t.flatten() for t in m]) for m in momenta)
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)
    for s in moved:
        assert torch.equal(s["reduce_scatter/u"]["tensors"]["basis"], torch.arange(100 * 77.0).view(100, 77))


def test_an_int8_residual_keeps_its_sum_to_its_own_rounding() -> None:
    shapes, old = [("w", (9, 40))], segments_of([("w", (9, 40))], 2)
    states: Saved = []
    dense = []
    for rank in range(2):
        rows = flatten([torch.randn(9, 40, generator=torch.Generator().manual_seed(rank))], 2)
        codes, scales = torch.empty_like(rows, dtype=torch.int8), torch.empty(2, 1)
        to_int8(rows, codes, scales)
        dense.append(unflatten(from_int8(codes, scales, torch.empty_like(rows)), old)[0])
        state = State("u", rank, 2, 0, old)
        state.put("residual", codes)
        state.put("residual_scales", scales)
        states.append({"reduce_scatter/u": save(state)})
    new = segments_of(shapes, 3)
    total = torch.zeros(9, 40)
    for s in cc.reshard(states, 3):
        tensors = s["reduce_scatter/u"]["tensors"]
        codes, scales = tensors["residual"], tensors["residual_scales"]
        total += unflatten(from_int8(codes, scales, torch.empty(codes.shape)), new)[0]
    torch.testing.assert_close(total, dense[0] + dense[1], rtol=0, atol=float(total.abs().max()) / 127)


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (2, 1)])
@pytest.mark.parametrize("is_int8", [False, True])
def test_what_means_left_out_moves_with_its_elements(old: int, new: int, is_int8: bool) -> None:
    """From the rank that summed a row to the one that sums these elements now."""
    before, after = segments_of(SHAPES, old), segments_of(SHAPES, new)
    waiting = [torch.randn(s, generator=torch.Generator().manual_seed(2)) for _, s in SHAPES]
    states: Saved = []
    for rank in range(old):
        state = State("u", rank, old, 0, before)
        row = flatten(waiting, old)[rank : rank + 1]
        codes, scales = torch.empty_like(row, dtype=torch.int8), torch.empty(1, 1)
        to_int8(row, codes, scales)
        state.child("gather", before).put("residual", codes if is_int8 else row)
        if is_int8:
            state.child("gather").put("residual_scales", scales)
        states.append({"outer/u": save(state)})
    moved = [s["outer/u"]["tensors"] for s in cc.reshard(states, new)]
    rows = [s["gather/residual"] for s in moved]
    if is_int8:
        rows = [
            from_int8(r, s["gather/residual_scales"], torch.empty(r.shape)) for r, s in zip(rows, moved, strict=True)
        ]
    for tensor, expected in zip(unflatten(torch.cat(rows), after), waiting, strict=True):
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0.03 if is_int8 else 0)


def test_remembered_parameters_move_to_the_new_layout() -> None:
    replica = [torch.randn(s, generator=torch.Generator().manual_seed(1)) for _, s in SHAPES]
    states: Saved = []
    for rank in range(3):
        state = State("u", rank, 3, 0, segments_of(SHAPES, 3))
        state.put("previous", flatten(replica, 3))
        states.append({"all_gather/u": save(state)})
    for s in cc.reshard(states, 2):
        assert torch.equal(s["all_gather/u"]["tensors"]["previous"], flatten(replica, 2))


def test_what_cannot_be_moved_is_refused() -> None:
    states = trained(2, METHODS[0])
    with pytest.raises(ValueError, match="each rank's state once"):
        cc.reshard([states[0], states[0]], 3)
    with pytest.raises(ValueError, match="each rank's state once"):
        cc.reshard([*states, states[0]], 3)
    with pytest.raises(ValueError, match="units differ"):
        cc.reshard([states[0], {}], 3)
    with pytest.raises(ValueError, match="new_world = 0"):
        cc.reshard(states, 0)


def _first_part() -> tuple[bytes, dict[str, str]]:
    model = sharded()
    handle = cc.attach(model, reduce_scatter=cc.make("topk", {"ratio": 0.2}))
    for step in range(2):
        loss_of(model, batch(dist.get_rank(), step)).backward()
        model.zero_grad()
    other = sharded()
    second, refusals = cc.attach(other, reduce_scatter=cc.make("topk")), {}
    saved = handle.state_dict()
    for name, change in {
        "rank": {"rank": 1 - dist.get_rank()},
        "world": {"world": 5},
        "layouts": {"layouts": {"": []}},
    }.items():
        try:
            second.load_state_dict({k: {**v, **change} for k, v in saved.items()})
        except ValueError as e:
            refusals[name] = str(e)
    file = io.BytesIO()
    torch.save(saved, file)
    return file.getvalue(), refusals


def _second_part(states: list[bytes]) -> tuple[bool, int]:
    model = sharded()
    handle = cc.attach(model, reduce_scatter=cc.make("topk", {"ratio": 0.2}))
    handle.load_state_dict(
        cc.reshard([torch.load(io.BytesIO(s)) for s in states], dist.get_world_size())[dist.get_rank()]
    )
    loss_of(model, batch(dist.get_rank(), 2)).backward()
    finite = all(bool(torch.isfinite(g).all()) for g in gradients(model).values())
    return finite, int(handle.state_dict()["reduce_scatter/root"]["tensors"]["tick"])


def test_real_ranks_save_reshard_and_go_on() -> None:
    results = run_ranks(2, _first_part)
    for _, refusals in results:
        assert "comm_compress.reshard(states, 2)" in refusals["world"]
        assert "of rank" in refusals["rank"]
        assert "other parameters" in refusals["layouts"]
    assert run_ranks(3, _second_part, [state for state, _ in results]) == [(True, 3)] * 3
