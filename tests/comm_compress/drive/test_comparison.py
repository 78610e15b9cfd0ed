"""Comparing with the exact gradient: known answers, and nothing changed by looking."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from comm_compress.drive import transport
from tests.comm_compress.integrations.fsdp.test_hsdp import replicated
from tests.comm_compress.integrations.test_fsdp import batch, full, loss_of, serial_gradients, sharded
from tests.distributed import run_ranks

COUNTS = ("calls", "elements", "raw_bytes", "sent_bytes", "extra_collectives", "nonfinite_inputs")
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("identity", {}),
    ("zero", {}),
    ("topk", {"ratio": 0.2}),
    ("topk", {"ratio": 0.2, "error_feedback": {"dtype": "int8"}}),
    ("int8", {"scale": "global"}),
    ("dgc", {"ratio": 0.2}),
    ("sketch", {"ratio": 0.2}),
    ("int8", {"layers": {"*embed*": {"method": "topk", "ratio": 0.2}}}),
]


def together(part: cc.Comparison) -> cc.Comparison:
    """The sum of the ranks' parts."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, astuple(part))
    return sum((cc.Comparison(*p) for p in parts), cc.Comparison())


def _trained(name: str, settings: dict[str, Any], compare: bool) -> tuple[Any, ...]:
    """Four steps; the parameters, the ledger's counts, the states and the comparison of the second and fourth."""
    model = sharded()
    handle = cc.attach(model, reduce_scatter=cc.make(name, settings), seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = cc.Comparison()
    for step in range(4):
        if compare and step % 2:
            with handle.compare() as comparisons:
                loss_of(model, batch(dist.get_rank(), step)).backward()
            found += comparisons.total()
            assert set(comparisons.by_unit()) == {"root", "blocks.0", "blocks.1", "branch"}
        else:
            loss_of(model, batch(dist.get_rank(), step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    totals = handle.ledger.totals()
    states = {f"{unit}/{k}": v for unit, s in handle.state_dict().items() for k, v in s["tensors"].items()}
    return full(model), [getattr(totals, c) for c in COUNTS], states, together(found) if compare else None


def _alike() -> list[tuple[bool, bool, bool, cc.Comparison]]:
    results = []
    for name, settings in METHODS:
        parameters, counts, states, _ = _trained(name, settings, compare=False)
        seen_parameters, seen_counts, seen_states, found = _trained(name, settings, compare=True)
        same_state = states.keys() == seen_states.keys() and all(torch.equal(states[k], seen_states[k]) for k in states)
        same = all(torch.equal(parameters[k], seen_parameters[k]) for k in parameters)
        results.append((same, counts == seen_counts, same_state, found))
    return results


def test_looking_changes_no_parameter_no_state_and_no_count_and_finds_what_it_should() -> None:
    results = run_ranks(2, _alike)[0]
    for (name, settings), (parameters, counts, states, _) in zip(METHODS, results, strict=True):
        assert (parameters, counts, states) == (True, True, True), (name, settings)
    identity, zero, topk, topk_int8, int8, dgc, sketch, layers = (found for *_, found in results)
    assert (identity.relative_error, identity.cosine) == (0, 1)
    assert (identity.residual_norm, identity.density) == (0, 1)
    assert (zero.relative_error, zero.cosine, zero.density) == (1, None, 0)
    assert topk.density == pytest.approx(0.2, rel=0.05)  # rows are short: k is rounded
    assert topk.relative_error is not None
    assert topk.relative_error > 0.1
    assert topk.residual_norm is not None
    assert topk.residual_norm > 0.1
    assert topk_int8.residual_norm == pytest.approx(topk.residual_norm, rel=0.05), "decoded before it is measured"
    assert int8.relative_error is not None
    assert 0 < int8.relative_error < 0.03
    assert int8.cosine is not None
    assert 0.999 < int8.cosine < 1
    assert (int8.density, int8.residual_norm) == (1, 0)
    assert dgc.residual_norm is not None
    assert dgc.residual_norm > 0
    assert sketch.density is not None
    assert 0 < sketch.density < 1
    assert layers.density is not None
    assert 0.2 < layers.density < 1


class Wide(nn.Module):
    """One unit of a known size."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(400, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def _of_a_known_gradient() -> tuple[Any, ...]:
    """Rank r's gradient is r + 1 everywhere but in one place, where it is 100 (r + 1): their mean is known."""
    gradient = torch.ones(400, 5)
    gradient[7, 3] = 100
    model = Wide()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    handle = cc.attach(model, reduce_scatter=cc.make("topk", {"k": 1, "error_feedback": True}))
    with handle.compare() as comparisons:
        model(gradient * (dist.get_rank() + 1)).backward()
    found = together(comparisons.total())
    model(gradient).backward()  # no longer looked at
    assert together(comparisons.total()) == found
    return found.relative_error, found.cosine, found.residual_norm, found.density, found.elements


def test_known_answers() -> None:
    error, cosine, residual, density, elements = run_ranks(2, _of_a_known_gradient)[0]
    # both rows of 1000 keep one element: the 100, and a 1 that is one of 1000 alike
    whole, kept = 1999 + 100**2, 1 + 100**2
    assert error == pytest.approx(math.sqrt((whole - kept) / whole))
    assert cosine == pytest.approx(math.sqrt(kept / whole))
    assert residual == pytest.approx(error), "what did not arrive was kept"
    assert density == 1 / 1000
    assert elements == 2 * 2000


def _exact() -> tuple[float, bool]:
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = torch.full((world, 3), float(rank + 1)).bfloat16() * torch.arange(1, world + 1).unsqueeze(1)
    before = rows.clone()
    total = transport.exact_sum(rows, dist.group.WORLD)
    assert total.dtype == torch.float32
    expected = (rank + 1) * world * (world + 1) / 2
    untouched = torch.equal(rows, before) and transport.exact_sum(rows[:, :0], dist.group.WORLD).numel() == 0
    return float((total - expected).abs().max()), untouched


def test_the_yardstick_is_the_sum_in_float32_and_leaves_its_input_alone() -> None:
    assert run_ranks(3, _exact) == [(0, True)] * 3


def _mean_error() -> float | None:
    """Against gradients that no rank and no FSDP2 had a hand in."""
    model = sharded()
    handle = cc.attach(model, reduce_scatter=cc.make("int4", {"block_size": 8}))
    with handle.compare() as comparisons:
        loss_of(model, batch(dist.get_rank(), 0)).backward()
    claimed = together(comparisons.total()).relative_error
    exact = serial_gradients(dist.get_world_size())
    got = {n: p.grad.full_tensor() for n, p in model.named_parameters() if p.grad is not None}  # type: ignore[attr-defined]
    error = math.sqrt(sum(float((got[k] - exact[k]).square().sum()) for k in exact))
    assert claimed is not None
    return claimed / (error / math.sqrt(sum(float(g.square().sum()) for g in exact.values())))


def test_the_error_is_that_of_the_gradients_the_optimizer_sees() -> None:
    assert run_ranks(3, _mean_error)[0] == pytest.approx(1, rel=1e-3)


def _not_finite() -> list[float | None]:
    model = sharded()
    model.nan_in_backward = dist.get_rank() == 1
    handle = cc.attach(model, reduce_scatter=cc.make("topk", {"ratio": 0.2}))
    with handle.compare() as comparisons:
        loss_of(model, batch(dist.get_rank(), 0)).backward()
    found = together(comparisons.total())
    return [found.relative_error, found.cosine, found.residual_norm]


def test_a_gradient_that_is_not_finite_gives_no_figure() -> None:
    assert run_ranks(2, _not_finite)[0] == [None, None, None]


def _extra() -> tuple[cc.Totals, cc.Totals]:
    model = sharded()
    handle = cc.attach(model, reduce_scatter=cc.make("int8", {"scale": "global"}), all_gather=cc.make("int8"))
    loss_of(model, batch(dist.get_rank(), 0)).backward()
    return handle.ledger.totals("reduce_scatter"), handle.ledger.totals("all_gather")


def test_extra_rounds_are_counted_and_timed_apart() -> None:
    scatter, gather = run_ranks(2, _extra)[0]
    assert scatter.extra_collectives == scatter.calls > 0
    assert 0 < scatter.extra_ms < scatter.wire_ms
    assert (gather.extra_collectives, gather.extra_ms) == (0, 0)


def _between_replicas() -> list[Any]:
    found: list[Any] = []
    for hop in (
        {"all_reduce": "identity"},
        {"all_reduce": "int8"},
        {"all_reduce": "identity", "all_reduce_gather": "bf16"},
    ):
        model = replicated()
        handle = cc.attach(model, reduce_scatter=cc.make("int4"), **{k: cc.make(v) for k, v in hop.items()})
        try:
            with handle.compare() as comparisons:
                loss_of(model, batch(dist.get_rank(), 0)).backward()
            found.append(together(comparisons.total()).relative_error)
        except ValueError as e:
            found.append(str(e))
    try:
        cc.attach(sharded(), all_gather=cc.make("int8")).compare()
    except ValueError as e:
        found.append(str(e))
    return found


def test_where_it_would_not_be_the_whole_story_it_is_refused() -> None:
    exact, rounded, gathered, nothing = run_ranks(4, _between_replicas)[0]
    assert 0 < exact < 0.3
    assert "gradients also go by int8" in rounded
    assert "gradients also go by bf16" in gathered
    assert "no reduce-scatter" in nothing
