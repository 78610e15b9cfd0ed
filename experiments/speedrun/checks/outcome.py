"""Is the target reached beyond chance, by the entry and by the baselines, and are the figures those of the rows?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from experiments.speedrun.entry import Entry, Row
from experiments.speedrun.score import score
from experiments.speedrun.task import BF16, ENTRY, NONE, SIGNIFICANCE

_DIGITS = 2e-6  # of a curve, relative: it has seven


def complaints(entry: Entry) -> Iterator[str]:
    """Losses that contradict each other, a target that was not reached, figures that the rows do not give."""
    for row in entry.rows:
        if row["status"] == "ok":
            for complaint in _losses(entry, row):
                yield f"{row['run_name']}: {complaint}"
    try:
        result = score(entry.task, {arm: entry.rows_of(arm) for arm in (ENTRY, NONE, BF16)})
    except ValueError as error:
        yield str(error)
        return
    own = result.arms[ENTRY]
    if not result.reached:
        p = "unknown" if own.p is None else f"{own.p:.2g}"
        yield (
            f"the target is not reached beyond chance: {own.loss.mean:.4f} nats a token over {own.loss.n} runs, where "
            f"{entry.task.target:g} are wanted; p = {p}, wants less than {SIGNIFICANCE:g}"
        )
    for arm in (NONE, BF16):
        if result.arms[arm].loss.mean > entry.task.target:
            yield (
                f"on this machine {arm} does not reach the target ({result.arms[arm].loss.mean:.4f}), "
                "so its time is no time to the target"
            )
    if json.dumps(entry.statistics, sort_keys=True) != json.dumps(result.plain(), sort_keys=True):
        yield "statistics.json does not say what follows from the rows"


def _losses(entry: Entry, row: Row) -> Iterator[str]:
    loss, ppl = row.get("val_loss"), row.get("val_ppl")
    if not isinstance(loss, int | float) or not isinstance(ppl, int | float):
        yield "has no validation loss"
        return
    if not math.isclose(math.exp(min(loss, 700.0)), ppl, rel_tol=1e-9):
        yield f"its perplexity {ppl:.4f} is not that of its loss {loss:.6f}"
    shown = [line["val_loss"] for line in entry.curves.get(str(row["run_name"]), ()) if "val_loss" in line]
    if len(shown) != 1 or not isinstance(shown[0], int | float):
        yield "its curve does not have one validation, after the last step"
    elif not math.isclose(shown[0], loss, rel_tol=_DIGITS):
        yield f"its curve has the validation loss {shown[0]}, and its row {loss:.6f}"
