"""What a user is told who trains in a way that has been seen to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdp_lab.models import remarks
from fsdp_lab.settings.config import parse

GRID = ["--method", "ecsq step=0.25 + delta mode=grid step=0.05"]
MOVES = ["--method", "ecsq step=0.25 + delta mode=grid step=0.1 moves=8"]


@pytest.mark.parametrize(("flags", "is_trained", "said"), [(GRID, True, 1), (GRID, False, 0), (MOVES, True, 0)])
def test_a_grid_is_not_for_trained_weights(flags: list[str], is_trained: bool, said: int, tmp_path: Path) -> None:
    start = ["--model_dir", str(tmp_path)] if is_trained else ["--model", "gpt2-nano"]
    nobody: Any = None  # without adapters neither model nor ranks are looked at
    assert len(list(remarks(nobody, parse([*flags, *start]), nobody))) == said
