"""A soak of two minutes. Slow: it starts the whole program half a dozen times under torchrun, 15 s of CPU each."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.faults.soak import is_clean, soak


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_minutes_of_kills_leave_nothing_and_lose_nothing(tmp_path: Path) -> None:
    found = soak(2, kill_every_s=5, save_steps=5, last_steps=5, folder=tmp_path).summary(120)
    assert is_clean(found), found
    assert found["steps"] > 0
    assert found["saves"] > 0
    assert any(start["resumed_at"] > 0 for start in found["each_start"])
