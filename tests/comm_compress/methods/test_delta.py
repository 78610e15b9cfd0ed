"""Parameters as changes: bit for bit or bounded, the same on every rank, and as small as published."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

import comm_compress as cc
from comm_compress import kernels
from comm_compress.core.encoded import ByteCount
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.kernels.coding.ulp import cpu as ulp_cpu, reference as ulp_reference
from tests.comm_compress.integrations.test_fsdp import Net, batch, full, loss_of, sharded, train, worst
from tests.comm_compress.table import build
from tests.distributed import run_ranks

CPU = torch.device("cpu")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LOSSLESS = {"mode": "lossless"}
PREDICTS = {"predict": 0.8}


def bits(values: Tensor) -> Tensor:
    return values.view(torch.int32 if values.itemsize == 4 else torch.int16)


def patterns(n: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Floats of uniformly random bits: NaN, infinities and denormals among them."""
    octets = torch.randint(256, (n, dtype.itemsize), generator=torch.Generator().manual_seed(seed))
    return octets.to(torch.uint8).view(dtype).flatten()


# ---- the ulp kernels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30, deadline=None)
@given(n=st.sampled_from([0, 1, 9, 500]), seed=st.integers(0, 1000), near=st.floats(0, 1))
def test_ulp_kernels_agree_and_lose_no_bit(dtype: torch.dtype, n: int, seed: int, near: float) -> None:
    old, new = patterns(n, dtype, seed), patterns(n, dtype, seed + 1)
    close = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < near
    steps = torch.randint(-300, 300, (n,), generator=torch.Generator().manual_seed(seed)).to(bits(old).dtype)
    new = torch.where(close, bits(old) + steps, bits(new)).view(dtype)
    ours, theirs = ulp_cpu.difference(old, new), ulp_reference.difference(old, new)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    table = torch.randint(256, (256,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    assert torch.equal(ulp_cpu.exponent_counts(old), ulp_reference.exponent_counts(old))
    found = [each.by_exponent(old, table, torch.empty(n, dtype=torch.uint8)) for each in (ulp_cpu, ulp_reference)]
    assert torch.equal(*found)
    for implementation in (ulp_cpu, ulp_reference):
        assert torch.equal(bits(implementation.apply(old.clone(), *ours)), bits(new))


@given(start=st.floats(width=32, allow_nan=False, allow_infinity=False), steps=st.integers(-7, 7))
@settings(max_examples=60, deadline=None)
def test_a_symbol_counts_representable_numbers(start: float, steps: int) -> None:
    """Across zero too, where -0 and 0 are two of them."""
    new = old = np.float32(start)
    for _ in range(abs(steps)):
        target = np.float32(math.copysign(math.inf, steps))
        new = np.nextafter(new, target) if new != 0 or np.signbit(new) != (steps > 0) else np.float32(-new)
    if np.isfinite(new):
        symbols, _ = kernels.ulp.on(CPU).difference(torch.tensor([old]), torch.tensor([new]))
        assert int(symbols) == (2 * steps if steps >= 0 else -2 * steps - 1)


def test_exponents_are_frexps() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)).clamp(1e-3)
    for dtype, bias in ((torch.float32, 127), (torch.bfloat16, 127), (torch.float16, 15)):
        narrow = values.to(dtype)
        exponents = torch.frexp(narrow.float()).exponent - 1 + bias
        assert torch.equal(kernels.ulp(narrow).exponent_counts(narrow), torch.bincount(exponents, minlength=256))
        themselves = torch.arange(256).to(torch.uint8)
        assert torch.equal(
            kernels.ulp(narrow).by_exponent(narrow, themselves, torch.empty(1000, dtype=torch.uint8)).int(), exponents
        )


# ---- both modes, virtual ranks ---------------------------------------------------------------------------------


def gather(method: cc.Compressor, rows: list[Tensor], states: list[State]) -> tuple[list[Tensor], list[ByteCount]]:
    for state in states:
        state.begin()
    rounds = [method.all_gather(row, state) for row, state in zip(rows, states, strict=True)]
    outcome = simulate.lockstep(rounds)
    assert all(torch.equal(bits(r), bits(outcome.results[0])) for r in outcome.results), "ranks differ"
    return outcome.results, outcome.sent


@pytest.mark.parametrize("config", [{}, PREDICTS, LOSSLESS, {"mode": "grid"}, {"mode": "grid", "moves": 8}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_replicas_advance_where_they_are(config: dict[str, Any], dtype: torch.dtype) -> None:
    """No second copy of the unsharded parameters: what was gathered is the replica, and moves with the next gather."""
    method, states = build("delta", config), simulate.states(2)
    rows = [torch.randn(500, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(2)]
    (first, _), _ = gather(method, rows, states)
    before = first.clone()
    (second, _), _ = gather(method, [row * 1.1 for row in rows], states)
    assert second.data_ptr() == first.data_ptr()
    assert not torch.equal(second, before)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n=st.sampled_from([0, 1, 50, 3000]),
    changes=st.lists(st.sampled_from(["none", "little", "one", "all", "one rank"]), min_size=1, max_size=5),
)
def test_lossless_is_bit_for_bit_whatever_happens(dtype: torch.dtype, seed: int, n: int, changes: list[str]) -> None:
    method, states = build("delta", LOSSLESS), simulate.states(3)
    rows = [patterns(n, dtype, seed + rank) for rank in range(3)]
    for step, change in enumerate(changes):
        for rank in range(3):
            if change == "all" or (change == "one rank" and rank == 1):
                rows[rank] = patterns(n, dtype, 10 * seed + step + rank)
            elif change == "little":
                rows[rank] = (bits(rows[rank]) + 3).view(dtype)
            elif change == "one" and n:
                rows[rank] = rows[rank].clone()
                rows[rank][n // 2] = -0.0
        results, sent = gather(method, rows, states)
        assert torch.equal(bits(results[0]), torch.stack([bits(row) for row in rows]))
        assert all(s.total <= 2 * (n * dtype.itemsize + 1 + 8) for s in sent), "at worst the row, a flag, a length"


PUBLISHED = {6e-4: 3.72, 3e-4: 2.82, 1e-4: 1.66, 3e-5: 0.85, 1e-5: 0.42, 1e-6: 0.08}


@pytest.mark.parametrize("rate", PUBLISHED)
def test_lossless_bits_an_element_are_the_published_ones(rate: float) -> None:
    """Weights N(0, 0.02) in bf16, updates of rms 0.3 lr: the entropy of the change given the old exponent."""
    n, random = 1 << 20, np.random.default_rng(0)
    weights = (random.standard_normal(n) * 0.02).astype(np.float32)
    moved = weights - (rate * 0.3 * random.standard_normal(n)).astype(np.float32)
    old, new = torch.from_numpy(weights).bfloat16(), torch.from_numpy(moved).bfloat16()
    method, states = build("delta", LOSSLESS), simulate.states(2)
    gather(method, [old, old], states)
    _, sent = gather(method, [new, new], states)
    seen = sent[0].total * 8 / n
    exponents, change = (bits(old).numpy() >> 7) & 255, bits(new).numpy().astype(int) - bits(old).numpy()
    ideal = sum(entropy(change[exponents == e]) for e in np.unique(exponents)) / n
    assert ideal == pytest.approx(PUBLISHED[rate], rel=0.01, abs=0.005)
    tables = 12 * 100 * 8 / n  # a dozen exponents, about a hundred bytes each
    assert 0.99 * ideal < seen < 1.02 * ideal + tables
    assert seen < 1.05 * PUBLISHED[rate] + tables


def entropy(symbols: np.ndarray) -> float:
    """n H in bits."""
    _, counts = np.unique(symbols, return_counts=True)
    return float(-(counts * np.log2(counts / counts.sum())).sum())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 20.5), (torch.float16, 7.0)])
def test_lossless_shortens_wider_mantissas_too(dtype: torch.dtype, most: float) -> None:
    n, generator = 1 << 18, torch.Generator().manual_seed(0)
    weights = torch.randn(n, generator=generator) * 0.02
    moved = weights - 1e-4 * 0.3 * torch.randn(n, generator=generator)
    method, states = build("delta", LOSSLESS), simulate.states(2)
    gather(method, [weights.to(dtype)] * 2, states)
    results, sent = gather(method, [moved.to(dtype)] * 2, states)
    assert torch.equal(results[0][0], moved.to(dtype))
    assert sent[0].total * 8 / n < most


@pytest.mark.parametrize("values", [{"method": "int8"}, {"method": "int8", "entropy": "rans"}, "bf16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_replicas_stay_within_one_steps_error(values: Any, dtype: torch.dtype) -> None:
    """|replica - row| <= max|change| / 254 at every step of a random walk: nothing accumulates."""
    method, states = build("delta", {"values": values}), simulate.states(2)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(1000, generator=generator).to(dtype) for _ in range(2)]
    replicas, _ = gather(method, rows, states)
    assert torch.equal(replicas[0], torch.stack(rows)), "the first rows arrive exactly"
    for _ in range(30):
        rows = [(row + 0.01 * torch.randn(1000, generator=generator)).to(dtype) for row in rows]
        change = (torch.stack(rows).float() - replicas[0].float()).abs().max()
        replicas, _ = gather(method, rows, states)
        error = (torch.stack(rows).float() - replicas[0].float()).abs()
        rounding = torch.finfo(dtype).eps / 2 * replicas[0].float().abs()
        assert bool((error <= change / 254 * 1.01 + rounding).all())


@pytest.mark.parametrize("values", ["int4", {"method": "uniform", "levels": 3, "block_size": 96}])
def test_prediction_halves_the_error_where_steps_resemble_the_last(values: Any) -> None:
    """Steps of an optimizer with momentum 0.9 on white gradients: the same bytes carry them twice as exactly."""
    errors, sent = [], []
    for predict in (0.0, 0.8):
        method, states = build("delta", {"values": values, "predict": predict}), simulate.states(2)
        generator = torch.Generator().manual_seed(0)
        rows, momenta, squares = torch.randn(2, 960, generator=generator), torch.zeros(2, 960), []
        for _ in range(40):
            momenta = 0.9 * momenta + torch.randn(2, 960, generator=generator)
            rows = rows - 0.001 * momenta
            replicas, counts = gather(method, list(rows), states)
            squares.append(float((replicas[0] - rows).square().mean()))
        errors.append(sum(squares[10:]) ** 0.5)
        sent.append(counts)
    assert sent[0] == sent[1]
    assert 0.4 < errors[1] / errors[0] < 0.6


def test_what_is_expected_is_the_last_change_again() -> None:
    method, states = build("delta", {"values": "identity", "predict": 0.5}), simulate.states(2)
    rows = [torch.zeros(64), torch.ones(64)]
    for step in range(3):
        gather(method, [row + 4.0 * step for row in rows], states)
    assert torch.equal(states[0].get("moved"), torch.full((2, 64), 4.0))
    replicas = states[0].get("replicas")
    assert replicas is not None
    assert torch.equal(method._expected(replicas, 1, states[0]), torch.full((64,), 1 + 8 + 2.0))


def test_quantized_bytes_are_those_of_the_nested_method() -> None:
    n, states = 1000, simulate.states(3)
    method = build("delta", {"values": {"method": "int8", "block_size": 104}})
    rows = [torch.randn(n, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    _, first = gather(method, rows, states)
    assert [s.total for s in first] == [2 * (4 * n + 1 + 8)] * 3
    _, sent = gather(method, [row + 0.1 for row in rows], states)
    assert sent == [ByteCount(values=2 * n, metadata=2 * (10 * 4 + 1 + 8))] * 3


@pytest.mark.parametrize("config", [{}, LOSSLESS, PREDICTS])
def test_an_unchanged_row_is_not_sent(config: dict[str, Any]) -> None:
    method, states = build("delta", config), simulate.states(3)
    rows = [torch.randn(500, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    gather(method, rows, states)
    rows = [rows[0], rows[1] + 0.01, rows[2]]
    second, sent = gather(method, rows, states)
    assert [s.total == 2 * 8 for s in sent] == [True, False, True]
    third, sent = gather(method, rows, states)
    assert [s.total for s in sent] == [2 * 8] * 3
    assert torch.equal(third[0], second[0])


@pytest.mark.parametrize("config", [{}, LOSSLESS, PREDICTS])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_arrives_and_leaves_again(config: dict[str, Any], bad: float) -> None:
    method, states = build("delta", config), simulate.states(2)
    rows = [torch.randn(700, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    for first in (True, False):
        if not first:
            gather(method, rows, states)
        spoiled = [rows[0].clone(), rows[1]]
        spoiled[0][123] = bad
        results, _ = gather(method, spoiled, states)
        assert torch.equal(torch.isfinite(results[1]), torch.isfinite(torch.stack(spoiled)))
        recovered, _ = gather(method, [row + 0.01 for row in rows], states)
        assert float((recovered[1] - torch.stack(rows) - 0.01).abs().max()) <= 0.011 / 14, "half a step of int4"


@pytest.mark.parametrize("config", [{}, LOSSLESS, PREDICTS])
def test_replicas_survive_a_checkpoint_and_are_missed_without(config: dict[str, Any]) -> None:
    method, states = build("delta", config), simulate.states(2)
    rows = [torch.randn(300, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    for step in range(3):
        gather(method, [row + 0.01 * step for row in rows], states)
    resumed = simulate.states(2)
    for copy, state in zip(resumed, states, strict=True):
        copy.load_state_dict(state.state_dict())
    rows = [row + 0.1 for row in rows]
    expected, expected_sent = gather(method, rows, states)
    got, sent = gather(build("delta", config), rows, resumed)
    assert torch.equal(got[0], expected[0])
    assert sent == expected_sent
    with pytest.raises(ValueError, match="load the compressor's state on all ranks"):
        gather(method, [row + 0.2 for row in rows], [states[0], State("", 1, 2)])


def test_a_step_taken_back_leaves_replicas_alone() -> None:
    method, states = build("delta", {}), simulate.states(2)
    rows = [torch.randn(300, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    gathered, _ = gather(method, rows, states)
    for state in states:
        state.rollback()
    again, sent = gather(method, rows, states)
    assert torch.equal(again[0], gathered[0])
    assert sent[0].total == 8


def test_another_precision_starts_anew() -> None:
    method, states = build("delta", {}), simulate.states(2)
    rows = [torch.randn(300, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    gather(method, rows, states)
    narrow = [row.bfloat16() for row in rows]
    results, _ = gather(method, narrow, states)
    assert torch.equal(results[0], torch.stack(narrow))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"values": "topk"}, ["values = 'topk'", "may carry parameters"]),
        ({"values": {"method": "int8", "scale": "global"}}, ["values", "row by row"]),
        ({"values": {"method": "int8", "error_feedback": True}}, ["values", "row by row"]),
        ({"values": {"method": "int8", "block": 1}}, ["values", "unknown key 'block'"]),
        ({"mode": "lossless", "values": "bf16"}, ["values = 'bf16'", "lossless"]),
        ({"mode": "lossless", "predict": 0.5}, ["predict = 0.5", "lossless"]),
        ({"predict": 1.0}, ["predict = 1.0", "less than 1"]),
        ({"predict": 0.5, "values": "lowrank"}, ["predict = 0.5", "leave elements out"]),
        ({"mode": "exact"}, ["mode = 'exact'", "'quantized'", "'lossless'"]),
        ({"error_feedback": True}, ["error_feedback", "replica feeds the error back"]),
        ({"mode": "lossless", "error_feedback": True}, ["error_feedback", "loses nothing"]),
    ],
)
def test_what_makes_no_sense_is_refused(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^delta: ") as refusal:
        cc.make("delta", config)
    assert all(word in str(refusal.value) for word in words)


# ---- real ranks, FSDP2 -----------------------------------------------------------------------------------------

MIXED = MixedPrecisionPolicy(torch.bfloat16, torch.float32)


def _lossless_against_stock() -> list[float]:
    distances = []
    for mixed in (None, MIXED):
        stock = train(sharded(mixed), steps=4)
        model = sharded(mixed)
        cc.attach(model, all_gather=build("delta", LOSSLESS))
        distances.append(worst(train(model, steps=4), stock))
    return distances


def _sgd(model: nn.Module, steps: range, handle: cc.Handle | None = None) -> list[tuple[int, int]]:
    """Train; bytes that parameters cost in each step's forward and backward pass."""
    optimizer, sent = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in steps:
        moments = [0]
        loss = loss_of(model, batch(dist.get_rank(), step))
        for pass_ in (lambda: None, loss.backward):
            pass_()
            moments.append(handle.ledger.totals("all_gather").sent_bytes if handle else 0)
        optimizer.step()
        optimizer.zero_grad()
        sent.append((moments[1], moments[2]))
    return sent


def _quantized() -> tuple[list[tuple[int, int]], float, list[float], list[float], int]:
    stock = sharded()
    _sgd(stock, range(10))
    model = sharded()
    handle = cc.attach(model, all_gather=build("delta", {}))
    sent, errors, changes, before = [], [], [], full(model)
    for step in range(10):
        sent += _sgd(model, range(step, step + 1), handle)
        exact = full(model)
        changes.append(worst(exact, before))
        model.unshard()
        seen = {k: p.detach().clone() for k, p in model.named_parameters() if not k.startswith(("blocks", "branch"))}
        model.reshard()
        errors.append(worst(seen, {k: exact[k] for k in seen}))
        before = exact
    with handle.exact():
        model.unshard()
        same = {k: p.detach().clone() for k, p in model.named_parameters() if k in seen}
        model.reshard()
    assert worst(same, {k: exact[k] for k in same}) == 0
    return sent, worst(full(model), full(stock)), errors, changes, handle.state_bytes


def _resumed(config: dict[str, Any]) -> float:
    straight = sharded(MIXED)
    handle = cc.attach(straight, all_gather=build("delta", config))
    _sgd(straight, range(3))
    resumed = sharded(MIXED)
    resumed.load_state_dict(straight.state_dict())
    second = cc.attach(resumed, all_gather=build("delta", config))
    second.load_state_dict(handle.state_dict())
    _sgd(straight, range(3, 6))
    _sgd(resumed, range(3, 6))
    return worst(full(straight), full(resumed))


def _of_masters(config: dict[str, Any]) -> tuple[set[torch.dtype], float, float]:
    """Replicas' dtypes, their distance to the float32 parameters, that of parameters rounded to bf16."""
    model = sharded(MIXED)
    handle = cc.attach(model, all_gather=build("delta", config))
    _sgd(model, range(3))
    model.unshard()  # the root's: what the last step did is sent
    model.reshard()
    state = handle._by_key["all_gather/root"]
    kept = {key: t for key, t in state.state_dict().items() if key.endswith("replicas")}
    masters = [p.to_local() for n, p in model.named_parameters() if not n.startswith(("blocks", "branch"))]  # type: ignore[attr-defined]
    mine = torch.cat([replica[dist.get_rank()] for replica in kept.values()]).float()
    rows = torch.zeros_like(mine)  # rows of one rank are padded at each parameter's end
    for segment in state.segments:
        local = masters.pop(0).flatten()
        rows[segment.start : segment.start + local.numel()] = local
    distances = [float((other - rows).abs().max()) for other in (mine, rows.bfloat16())]
    return {replica.dtype for replica in kept.values()}, distances[0], distances[1]


def _refused() -> str:
    try:
        cc.attach(sharded(), reduce_scatter=build("delta", {}))
    except ValueError as e:
        return str(e)
    return ""


def _two_ranks() -> dict[str, Any]:
    return {
        "lossless": _lossless_against_stock(),
        "quantized": _quantized(),
        "resumed": [_resumed({}), _resumed(LOSSLESS)],
        "of masters": [
            _of_masters({"values": "int8"}),
            _of_masters({"values": "int8", "layers": {"branch.*": "int8"}}),
        ],
        "of rows": _of_masters(LOSSLESS),
        "refused": _refused(),
    }


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, Any]]:
    return run_ranks(2, _two_ranks)


def test_lossless_trains_bit_for_bit_like_stock_fsdp2(two_ranks: list[dict[str, Any]]) -> None:
    assert [rank["lossless"] for rank in two_ranks] == [[0, 0]] * 2


def test_so_it_does_at_three_ranks() -> None:
    assert run_ranks(3, _lossless_against_stock) == [[0, 0]] * 3


def test_quantized_tracks_stock_and_gathers_once_a_step(two_ranks: list[dict[str, Any]]) -> None:
    for rank in two_ranks:
        sent, distance, errors, changes, state_bytes = rank["quantized"]
        assert 0 < distance < 1e-2
        for step in range(1, 10):
            # what the last step left out counts as change too
            assert 0 < errors[step] <= (changes[step] + errors[step - 1]) / 14 * 1.01 + 1e-7
        previous = 0
        for forward, backward in sent:
            assert backward - forward == 8 * 3, "a length for each of the units that are gathered again"
            assert forward > previous + 8 * 4
            previous = backward
        parameters = sum(p.numel() for p in Net().parameters())
        assert 4 * parameters * 1.5 <= state_bytes < 4 * parameters * 2, "replicas of all rows, and its own last one"


def test_quantized_replicas_follow_the_float32_parameters(two_ranks: list[dict[str, Any]]) -> None:
    """Under mixed precision bf16 rows would change in steps of an ulp, and some elements not at all."""
    for rank in two_ranks:
        for dtypes, distance, rounding in rank["of masters"]:
            assert dtypes == {torch.float32}
            assert 0 < distance < rounding / 10
        dtypes, distance, rounding = rank["of rows"]
        assert dtypes == {torch.bfloat16}
        assert distance == rounding


def test_a_resumed_run_is_the_run(two_ranks: list[dict[str, Any]]) -> None:
    assert [rank["resumed"] for rank in two_ranks] == [[0, 0]] * 2


def test_gradients_are_refused(two_ranks: list[dict[str, Any]]) -> None:
    assert all("delta is for parameters" in rank["refused"] for rank in two_ranks)
