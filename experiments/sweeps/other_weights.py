"""Weights that are not those which finished runs began with: a pair of both would compare two starts.

A common start that was trained on another machine has the same name and other last digits. Rows say which weights they
began with (``start_digest``), so a sweep that goes on elsewhere is told before its next cell, and not by its report.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.sweeps.plan import Plan
from experiments.sweeps.recipe.cells import Cell
from fsdp_lab.settings.models.weight_files import weight_files, weights_digest


def other_weights(plan: Plan) -> list[str]:
    """One line for each folder of weights with which cells to run would be paired with runs of other weights.

    Older rows do not say what they began with, and a plan of one cell alone (``--only``) has no pairs. ValueError: a
    folder has no weights, or says wrongly where they are.
    """
    waiting = {(folder, *_pair(plan, cell)) for cell in plan.to_run() if (folder := _folder(cell)) is not None}
    began: dict[str, list[str]] = {}
    for cell in plan.cells:
        past, folder = plan.past.get(cell.key), _folder(cell)
        if past is None or past.ok is None or folder is None or (folder, *_pair(plan, cell)) not in waiting:
            continue
        if (digest := past.ok.get("start_digest")) is not None:
            began.setdefault(folder, []).append(digest)
    return [line for folder, digests in began.items() for line in _line(Path(folder), digests)]


def _line(folder: Path, digests: list[str]) -> Iterator[str]:
    if not folder.is_dir():
        return  # it is trained first, or missing, which is said elsewhere
    here = weights_digest(weight_files(folder, trust_pickle=True))  # nothing in them is run
    if others := sum(digest != here for digest in digests):
        runs = "a finished run" if others == 1 else f"{others} finished runs"
        yield (
            f"{folder} has other weights than {runs} of the same seeds began with, and pairs of both would compare two "
            "starts: bring the other folder here, or begin anew with another --out"
        )


def _folder(cell: Cell) -> str | None:
    folder = cell.config.resolved().get("model_dir")
    return None if folder is None else str(folder)


def _pair(plan: Plan, cell: Cell) -> tuple[object, ...]:
    """What two cells have in common that are compared: all that the recipe varies but arms and their tuning."""
    rates = {} if plan.recipe.rates is None else plan.recipe.rates.of(cell.arm)
    tuned = {*plan.recipe.tune, *rates}
    return cell.seed, *((name, value) for name, value in cell.varied.items() if name not in tuned)
