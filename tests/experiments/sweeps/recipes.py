"""Recipes for tests, and rows as the trainer writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from experiments.sweeps.recipe.cells import Cell
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL, Trainer
from tests.experiments.sweeps.fake_trainer import row_with

PLAIN: dict[str, Any] = {
    "name": "test",
    "seeds": [1, 2],
    "models": ["gpt2-nano"],
    "common": {"max_steps": 10, "max_length": 16, "batch_size": 2},
    "world_sizes": [1],
    "arms": ["int8", "none"],
}


def write_recipe(folder: Path, **changes: Any) -> Path:
    """``PLAIN`` with some keys changed (None: left out)."""
    path = folder / "recipe.yaml"
    said = {key: value for key, value in {**PLAIN, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(said, sort_keys=False))
    return path


def quick() -> Trainer:
    """The language-model trainer with a stand-in for its program."""
    return replace(LANGUAGE_MODEL, module="tests.experiments.sweeps.fake_trainer")


def row_of(cell: Cell, status: str = "ok", **fields: Any) -> dict[str, Any]:
    """A row that the cell might have left."""
    rate, delay = cell.link.as_in_rows if cell.link else (None, None)
    return row_with(cell.config.resolved(), cell.config.digest(), cell.world_size, status) | {
        "link_rate_asked": rate,
        "link_delay_ms": delay,
        **fields,
    }
