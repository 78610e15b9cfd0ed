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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--outer", "diloco", "--max_steps", "400"], 1),
        (["--outer", "diloco", "--max_steps", "400", "--outer_momentum", "0.3"], 0),
        (["--outer", "diloco", "--max_steps", "1800"], 0),
        (["--outer", "diloco"], 0),  # as many steps as the text has: not known yet
        (["--outer", "local_sgd", "--max_steps", "60"], 0),
        (["--system", "third-of-a-bit", "--optimizer", "muon", "--max_steps", "400"], 0),
        (["--max_steps", "400"], 0),
    ],
)
def test_an_outer_momentum_wants_many_synchronisations(flags: list[str], said: int) -> None:
    nobody: Any = None
    found = list(remarks(nobody, parse([*flags, "--model", "gpt2-nano", "--dp_replicas", "2"]), nobody))
    assert len(found) == said
    assert all("13 synchronisations are few" in text for text in found)
