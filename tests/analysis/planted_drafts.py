"""Rows of drafts whose truth is known: planted_rows' bytes, and acceptance lengths in place of perplexities."""

from __future__ import annotations

from typing import Any

from analysis.rows.reading import Row
from tests.analysis import planted_rows
from tests.analysis.planted_rows import SEEDS

TAU = 1.5
LUCK = {1: -0.1, 2: 0.0, 3: 0.1}  # of a seed, the same for every arm: pairing removes it


def row(method: str = "none", seed: int = 1, lost: float = 0.0, parameters: str | None = None, **changes: Any) -> Row:
    """A draft whose tau is ``TAU + LUCK[seed] - lost``; ``changes`` as in planted_rows, or new columns."""
    of_models = dict(planted_rows.row(method, seed, parameters=parameters))
    given = dict.fromkeys(("val_loss", "val_ppl", "val_tokens", "eval_weights"))
    given |= {"model": "draft-of-target", "draft_target": "a/target", "tau": TAU + LUCK[seed] - lost, "tau_prompts": 32}
    config = {key: value for key, value in of_models["config"].items() if key not in ("model", "target_ppl")}
    config = {**config, "target_dir": "a/target", "data_path": "answers.jsonl"}
    for name, value in changes.items():
        if name in config:
            config[name] = value
        if name in of_models or name not in config:
            given[name] = value
    return Row({**of_models, **given, "config": config})


def arm(method: str, lost: tuple[float, float, float] = (0.0, 0.0, 0.0), **changes: Any) -> list[Row]:
    """A run a seed."""
    return [row(method, seed, loss, **changes) for seed, loss in zip(SEEDS, lost, strict=True)]


def died(method: str, seed: int, **changes: Any) -> Row:
    """A run that failed before it measured anything."""
    unknown = dict.fromkeys(("steps", "tokens_seen", "tau", "tau_prompts", "tokens_per_s", "step_time_ms_p50"))
    return row(method, seed, **{"status": "failed", "error": "rank 1 died", **unknown, **changes})


def fair() -> list[Row]:
    """Two baselines, int8 a little worse, int4 clearly."""
    return [*arm("none"), *arm("bf16"), *arm("int8", (0.01, 0.02, 0.03)), *arm("int4", (0.2, 0.21, 0.22))]
