"""What waits for the next step, by hand: a method that sends the largest element of four."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from comm_compress.drive import simulate
from comm_compress.wrappers.error_feedback import ErrorFeedback
from tests.comm_compress.table import build

ROWS = torch.tensor([[8.0, 5.0, 2.0, 1.0]])
STEPS = 4


def waiting(**feedback: Any) -> list[list[float]]:
    """The residual after each of four steps with the same gradient, on one rank alone."""
    compressor = build("topk", {"k": 1, "error_feedback": feedback or True})
    assert isinstance(compressor, ErrorFeedback)
    (state,) = simulate.states(1, "unit")
    found = []
    for step in range(STEPS):
        if step:
            state.begin(torch.tensor(True))
        simulate.reduce_scatter(compressor, [ROWS], [state])
        residual = compressor.residual(state)
        assert residual is not None
        found.append(residual[0].tolist())
    return found


def test_what_was_left_out_is_added_until_it_is_sent() -> None:
    assert waiting() == [[0, 5, 2, 1], [8, 0, 4, 2], [0, 5, 6, 3], [8, 0, 8, 4]]


def test_a_decayed_residual() -> None:
    assert waiting(decay=0.5)[:3] == [[0, 5, 2, 1], [0, 7.5, 3, 1.5], [8, 0, 3.5, 1.75]]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_every_third_collective_begins_with_nothing(dtype: str) -> None:
    first, second, third, fourth = waiting(reset_every=3, dtype=dtype)
    assert first == pytest.approx([0, 5, 2, 1], rel=0.02)
    assert second == pytest.approx([8, 0, 4, 2], rel=0.02)
    assert third == pytest.approx(first, rel=0.02), "the gradient's own"
    assert fourth == pytest.approx(second, rel=0.02)


def test_settings_say_how_it_is_fed_back() -> None:
    compressor = build("topk", {"k": 1, "error_feedback": {"decay": 0.5}})
    assert isinstance(compressor, ErrorFeedback)
    assert compressor.settings["error_feedback"] == {"dtype": "fp32", "decay": 0.5, "reset_every": 0}
    bare = ErrorFeedback(compressor.inner, compressor.config)
    assert bare.settings["error_feedback"]["decay"] == 0.5


def test_a_residual_of_another_size_is_refused() -> None:
    compressor = build("topk", {"k": 1})
    (state,) = simulate.states(1, "unit")
    simulate.reduce_scatter(compressor, [ROWS], [state])
    state.begin(torch.tensor(True))
    with pytest.raises(ValueError, match=r"the residual has shape \(1, 4\) but this gradient has \(1, 3\)"):
        simulate.reduce_scatter(compressor, [ROWS[:, :3]], [state])
