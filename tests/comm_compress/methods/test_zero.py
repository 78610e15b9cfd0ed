"""`zero`: a byte a row, and nothing delivered."""

from __future__ import annotations

import pytest
import torch

from comm_compress import make
from tests.comm_compress.methods.projections.samples import normal, ranks, step, total
from tests.comm_compress.table import build


def test_zero_sends_one_byte_a_row_and_delivers_nothing() -> None:
    compressor, states = build("zero", {}), ranks(3)
    outcome = step(compressor, [normal(3, 1000, seed=r) for r in range(3)], states)
    assert torch.equal(total(outcome), torch.zeros(3, 1000))
    assert [sent.total for sent in outcome.sent] == [2, 2, 2]


def test_feedback_around_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is ever sent"):
        make("zero", {"error_feedback": True})
