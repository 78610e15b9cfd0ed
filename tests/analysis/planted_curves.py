"""Curve files of planted runs: losses that fall along a known law, from above to the row's own loss."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from analysis.rows.reading import Row
from tests.analysis import planted_rows
from tests.analysis.planted_rows import LOSS, NOISE

LOG_EVERY, EVALUATE_EVERY, SAMPLE_EVERY = 10, 20, 25
STEP_SECONDS = 0.1


def loss(step: int, seed: int, worse: float) -> float:
    """At ``step`` of 100, in the end the row's; an arm's loss departs from the others' as training goes on."""
    to_come = 5.8 * (math.exp(-step / 20) - math.exp(-planted_rows.STEPS / 20))
    return LOSS + NOISE[seed] + worse * step / planted_rows.STEPS + to_come


def lines(seed: int, worse: float, error: float, last_step: int = planted_rows.STEPS) -> list[dict[str, Any]]:
    """What the trainer writes: log lines, evaluations, and samples of a gradient whose relative error is ``error``."""
    found: list[dict[str, Any]] = []
    for step in range(1, last_step + 1):
        here = {"step": step, "train_seconds": step * STEP_SECONDS, "tokens": step * planted_rows.TOKENS_A_STEP}
        now = loss(step, seed, worse)
        if step % LOG_EVERY == 0:
            found.append({**here, "train_loss": now, "grad_norm": 1.0})
        if step % SAMPLE_EVERY == 0 and error:
            sample = {"grad_rel_error": error, "grad_cos_sim": 1 - error / 2, "residual_norm": 2 * error}
            found.append({**here, **sample, "density": 1.0})
        if step % EVALUATE_EVERY == 0:
            found.append({**here, "val_loss": now, "val_ppl": math.exp(now)})
    return found


def run(folder: Path, row: Row, worse: float = 0.0, error: float = 0.0, last_step: int = planted_rows.STEPS) -> Row:
    """The row, now with a curve beside the results file ``folder/results.jsonl``."""
    name = f"{row['run_name']}-{row['world_size']}.jsonl"
    text = "".join(json.dumps(line) + "\n" for line in lines(row["seed"], worse, error, last_step))
    (folder / name).write_text(text)
    return Row({**row, "loss_curve": name}, folder / "results.jsonl", row.line)


def arm(folder: Path, method: str, worse: float = 0.0, error: float = 0.0, **changes: Any) -> list[Row]:
    """A run a seed."""
    rows = planted_rows.arm(method, worse, **changes)
    return [run(folder, row, worse, error) for row in rows]
