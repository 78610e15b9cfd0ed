"""Deep Gradient Compression against the paper's algorithm in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from comm_compress.core.state import State
from comm_compress.drive import simulate
from tests.comm_compress.methods.sparsifiers.samples import normal, round_trip, state, top_by_numpy
from tests.comm_compress.table import build, codec


def dgc_by_numpy(gradients: list[np.ndarray], kept: list[int], m: float, masking: bool) -> list[np.ndarray]:
    """What one rank sends at each step, from the paper's algorithm."""
    u = v = np.zeros_like(gradients[0])
    sent = []
    for g, k in zip(gradients, kept, strict=True):
        u = np.float32(m) * u + g
        v = v + u
        out = np.zeros_like(v)
        for row in range(len(v)):
            places = top_by_numpy(v[row], k)
            out[row, places] = v[row, places]
            v[row, places] = 0
            if masking:
                u[row, places] = 0
        sent.append(out)
    return sent


@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("warmup", [0, 4])
def test_dgc_is_the_papers_algorithm(masking: bool, warmup: int) -> None:
    world, n, steps = 2, 500, 7
    config = {"ratio": 0.01, "momentum": 0.8, "momentum_masking": masking, "warmup_ratio_steps": warmup}
    compressor, states = build("dgc", config), [State("unit", rank, world) for rank in range(world)]
    gradients = [[normal(world, n, 10 * step + rank) for step in range(steps)] for rank in range(world)]
    # 0.25 (0.01 / 0.25)^(t / 4): 25, 11.2, 5, 2.24 and then 1 percent
    kept = [125, 56, 25, 11, 5, 5, 5] if warmup else [5] * steps
    expected = [dgc_by_numpy([g.numpy() for g in mine], kept, 0.8, masking) for mine in gradients]
    for step in range(steps):
        for mine in states:
            mine.begin()
        results = simulate.reduce_scatter(compressor, [gradients[r][step] for r in range(world)], states)
        for rank, result in enumerate(results):
            total = sum(expected[sender][step][rank] for sender in range(world))
            np.testing.assert_allclose(result.total.numpy(), total, rtol=1e-5, atol=1e-6)


def test_dgc_keeps_what_its_values_codec_loses() -> None:
    """sent + v = old v + u: nothing vanishes, whatever the values are rounded to."""
    compressor, mine = codec("dgc", {"values": "int8", "ratio": 0.1}), state(1)
    total_sent, total_u = torch.zeros(1, 300), torch.zeros(1, 300)
    for step in range(5):
        mine.begin()
        u_before = mine.get("u")
        gradient = normal(1, 300, step)
        total_u += gradient + (0 if u_before is None else 0.9 * u_before)
        total_sent += compressor.decode(compressor.encode(gradient, mine))
        mine.commit()
    left = mine.get("v")
    assert left is not None
    torch.testing.assert_close(total_sent + left, total_u, rtol=1e-5, atol=1e-5)
    assert (left[total_sent != 0] != 0).any()


def test_dgc_clips_the_units_norm() -> None:
    compressor = codec("dgc", {"ratio": 1.0, "clip_unit_norm": 2.0})
    large, small = normal(2, 100) * 5, normal(2, 100) * 0.01
    torch.testing.assert_close(round_trip(compressor, large).norm(), torch.tensor(2.0))
    assert torch.equal(round_trip(compressor, small), small)


def test_dgc_refuses_another_gradient_than_it_waits_with() -> None:
    compressor, mine = codec("dgc", {}), state()
    compressor.encode(normal(1, 10), mine)
    mine.begin()
    with pytest.raises(ValueError, match="has changed"):
        compressor.encode(normal(1, 11), mine)
