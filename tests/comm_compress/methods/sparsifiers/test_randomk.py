"""Random-k: the same coordinates on all ranks, each as likely as any other, and the closed form of its error."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from comm_compress.core.compressor import Codec
from comm_compress.core.rounds import Exchange, Sum
from comm_compress.drive import simulate
from comm_compress.wrappers.error_feedback import ErrorFeedback
from tests.comm_compress.methods.sparsifiers.samples import normal, state
from tests.comm_compress.table import build, codec


def test_ranks_draw_the_same_k_distinct_coordinates_and_others_at_the_next_step() -> None:
    compressor, n = codec("randomk", {"k": 40}), 1000
    states = simulate.states(3, "unit")
    drawn = [compressor.encode(normal(3, n, r), states[r]).agreed["drawn"] for r in range(3)]
    assert all(torch.equal(d, drawn[0]) for d in drawn)
    assert len(set(drawn[0].tolist())) == 40
    assert (drawn[0].diff() > 0).all()
    states[0].begin()
    assert not torch.equal(compressor.encode(normal(3, n), states[0]).agreed["drawn"], drawn[0])


def test_every_coordinate_and_every_pair_is_as_likely_as_any_other() -> None:
    """k of n without replacement: inclusion k / n, of two at once k (k - 1) / (n (n - 1)); five standard deviations."""
    compressor, n, k, trials = codec("randomk", {"k": 4}), 12, 4, 4000
    mine, together = state(), np.zeros((n, n))
    for _ in range(trials):
        mine.begin()
        chosen = compressor.encode(torch.ones(1, n), mine).agreed["drawn"].numpy()
        together[np.ix_(chosen, chosen)] += 1
    for seen, p in ((np.diag(together), k / n), (together[~np.eye(n, dtype=bool)], k * (k - 1) / n / (n - 1))):
        assert np.abs(seen / trials - p).max() < 5 * math.sqrt(p * (1 - p) / trials)


@pytest.mark.parametrize("k", [100, 1000])
@pytest.mark.parametrize("scaling", ["unbiased", "contractive"])
def test_randomk_errs_by_the_closed_form(scaling: str, k: int) -> None:
    x, mine = normal(2, 4000), state(2)
    compressor, n, trials = codec("randomk", {"k": k, "scaling": scaling}), 4000, 300
    errors = []
    for _ in range(trials):
        mine.begin()
        errors.append(float(((compressor.decode(compressor.encode(x, mine)) - x) ** 2).sum()))
    expected = n / k - 1 if scaling == "unbiased" else 1 - k / n
    assert np.mean(errors) / float((x**2).sum()) == pytest.approx(expected, rel=0.02)


def test_feedback_follows_the_scaling() -> None:
    assert isinstance(build("randomk", {}), ErrorFeedback)
    unbiased = build("randomk", {"scaling": "unbiased"})
    assert isinstance(unbiased, Codec)
    assert unbiased.traits.unbiased
    assert not build("randomk", {"scaling": "unbiased", "values": "bf16"}).traits.unbiased
    assert isinstance(build("randomk", {"error_feedback": False}), Codec)
    with pytest.raises(ValueError, match="residual grow"):
        build("randomk", {"scaling": "unbiased", "error_feedback": True})


def test_randomk_is_summed_on_the_wire_when_values_are_exact() -> None:
    for values, request in ((None, Sum), ("bf16", Exchange)):
        compressor = codec("randomk", {"values": values})
        assert isinstance(next(compressor.reduce_scatter(normal(2, 100), state(2))), request)


def test_randomk_with_feedback_delivers_everything_in_the_end() -> None:
    """The residual stays bounded (about n / k gradients), so the mean delivered tends to the gradient."""
    compressor, states = build("randomk", {"k": 4}), simulate.states(1)
    gradient, delivered, steps = torch.arange(1.0, 17.0).unsqueeze(0), torch.zeros(16), 1000
    for _ in range(steps):
        states[0].begin()
        delivered += simulate.reduce_scatter(compressor, [gradient], states)[0].total
    torch.testing.assert_close(delivered / steps, gradient[0], rtol=0.05, atol=0)
