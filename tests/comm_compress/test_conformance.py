"""The laws that every method obeys, over the one table of methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from comm_compress import available, simulate
from comm_compress.feedback import ErrorFeedback
from comm_compress.state import State
from tests.comm_compress.table import IDS, TABLE, build
from tests.distributed import run_ranks

every_method = pytest.mark.parametrize(("name", "config"), TABLE, ids=IDS)
SIZES = st.sampled_from([1, 2, 3, 7, 31, 32, 33, 255, 256, 257, 1000])


def gradient(ranks: int, rows: int, n: int, seed: int = 0) -> list[Tensor]:
    """Heavy-tailed rows ``[rows, n]`` for each rank, scales far apart."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, n, generator=generator) ** 3 * 10.0 ** float(torch.randint(-3, 2, (1,), generator=generator))
        for _ in range(ranks)
    ]


def test_every_registered_method_is_in_the_table() -> None:
    assert {name for name, _ in TABLE} == set(available()) - {"none"}


@every_method
@settings(max_examples=15, deadline=None)
@given(n=SIZES, rows=st.integers(1, 4), seed=st.integers(0, 10))
def test_the_bytes_are_the_bytes_declared(name: str, config: dict[str, Any], n: int, rows: int, seed: int) -> None:
    compressor = build(name, config)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        encoded = compressor.encode(gradient(1, rows, n, seed)[0].to(dtype), State())
        assert encoded.buffer.nbytes == rows * compressor.wire_bytes(n, dtype)
        assert encoded.layout.byte_count.total == compressor.wire_bytes(n, dtype)


@every_method
@pytest.mark.parametrize("n", [0, 1, 300])
def test_zeros_stay_zero_and_empty_rows_stay_empty(name: str, config: dict[str, Any], n: int) -> None:
    compressor = build(name, config)
    encoded = compressor.encode(torch.zeros(3, n), State())
    assert torch.equal(compressor.decode(encoded).float(), torch.zeros(3, n))
    assert torch.equal(compressor.decode_sum(encoded), torch.zeros(n))


@every_method
@settings(max_examples=15, deadline=None)
@given(n=SIZES, bad=st.sampled_from([float("nan"), float("inf"), -float("inf")]), place=st.floats(0, 0.999))
def test_what_is_not_finite_never_becomes_plausible(
    name: str, config: dict[str, Any], n: int, bad: float, place: float
) -> None:
    compressor = build(name, config)
    rows = gradient(1, 2, n)[0]
    rows[1, int(place * n)] = bad
    encoded = compressor.encode(rows, State())
    assert not torch.isfinite(compressor.decode(encoded)[1]).all()
    assert not torch.isfinite(compressor.decode_sum(encoded)).all()


@every_method
def test_encoding_is_a_function_of_its_input(name: str, config: dict[str, Any]) -> None:
    rows = gradient(1, 3, 500)[0]
    before = rows.clone()
    global_generator = torch.get_rng_state()
    first = build(name, config).encode(rows, State())
    second = build(name, config).encode(rows, State())
    assert torch.equal(first.buffer, second.buffer)
    assert torch.equal(rows, before), "the input is not written to"
    assert torch.equal(torch.get_rng_state(), global_generator), "the global generator is not touched"


@every_method
def test_decode_sum_is_the_sum_of_decoded_rows(name: str, config: dict[str, Any]) -> None:
    compressor = build(name, config)
    encoded = compressor.encode(gradient(1, 4, 777)[0], State())
    expected = compressor.decode(encoded).double().sum(0)
    torch.testing.assert_close(compressor.decode_sum(encoded).double(), expected, rtol=1e-5, atol=1e-6)


@every_method
def test_feedback_loses_nothing(name: str, config: dict[str, Any]) -> None:
    """decoded + residual == input + decayed old residual, step after step."""
    compressor = build(name, config)
    if not isinstance(compressor, ErrorFeedback):
        pytest.skip("no feedback in this row")
    state = State()
    old = torch.zeros(2, 900)
    rounding = 2**-8 if compressor.dtype == torch.bfloat16 else 1e-6
    for step in range(4):
        state.commit()
        rows = gradient(1, 2, 900, seed=step)[0]
        decoded = compressor.decode(compressor.encode(rows, state))
        state.commit()
        residual = state.get("residual")
        assert residual is not None
        expected = rows + compressor.decay * old
        error = (decoded.float() + residual.float() - expected).abs().max()
        assert error <= rounding * expected.abs().max()
        old = residual.float().clone()


@every_method
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_virtual_reduce_scatter_approximates_the_sum(name: str, config: dict[str, Any], world: int) -> None:
    """And every rank's total equals, to rounding, the sum of what the ranks say they sent."""
    compressor = build(name, config)
    inputs = gradient(world, world, 400)
    results = simulate.reduce_scatter(compressor, inputs, [State() for _ in range(world)])
    for rank, result in enumerate(results):
        sent = sum(compressor.decode(r.sent)[rank].double() for r in results)
        torch.testing.assert_close(result.total.double(), sent, rtol=1e-5, atol=1e-5)


def _real(name: str, config: dict[str, Any], inputs: list[Tensor]) -> list[Any]:
    import torch.distributed as dist

    from comm_compress import transport
    from comm_compress.ledger import Collective

    compressor, state, totals = build(name, config), State(), []
    group, collective = dist.group.WORLD, Collective(torch.device("cpu"))
    assert group is not None
    for step in range(2):
        state.commit()
        rows = inputs[dist.get_rank()] * (step + 1)
        totals.append(transport.run(compressor.reduce_scatter(rows, state), group, collective).total.numpy())
    return [totals, collective.bytes.total]


def _real_all(inputs: list[Tensor]) -> list[Any]:
    return [_real(name, config, inputs) for name, config in TABLE]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("n", [1, 333])
def test_virtual_ranks_give_the_numbers_of_real_ranks(world: int, n: int) -> None:
    inputs = gradient(world, world, n)
    real = run_ranks(world, _real_all, inputs)
    for row, (name, config) in enumerate(TABLE):
        compressor, states = build(name, config), [State() for _ in range(world)]
        for step in range(2):
            for state in states:
                state.commit()
            virtual = simulate.reduce_scatter(compressor, [x * (step + 1) for x in inputs], states)
            for rank in range(world):
                assert (real[rank][row][0][step] == virtual[rank].total.numpy()).all(), (name, config)
        expected = 2 * (world - 1) * compressor.wire_bytes(n)
        if config.get("scale") == "global":  # two steps' all-reduce of a float32 scalar
            expected += 2 * 2 * (world - 1) * -(-4 // world)
        assert real[0][row][1] == expected, (name, config)
