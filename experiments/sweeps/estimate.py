"""How long cells will take, by what finished runs took: said to be an estimate wherever it is shown.

A run's time is its start, evaluation and end, which are taken as they were, and its optimiser steps, which are scaled
by tokens (of drafts by conversations). Of the finished runs the most alike count: the same arm at the same place
(model, ranks, link), else other arms at that place, else the same model anywhere, in other arithmetic if need be; runs
of this machine before others. Their median is taken.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.sweeps.recipe.arms import FURTHER
from experiments.sweeps.recipe.cells import Cell
from experiments.sweeps.recipe.trainers import METHODS, VIRTUAL, Trainer, trainer_of
from fsdp_lab.run.environment import hardware

Row = Mapping[str, Any]
_COMM = (*METHODS, *FURTHER)
_DEGREES = ("of the same arms", "of other arms, too", "with other ranks or links, too", "in other arithmetic, too")


class Estimator:
    """Estimates from finished rows; ``add`` gives it more as a sweep goes on."""

    def __init__(self, rows: Iterable[Row], source: str, cpu: str | None = None) -> None:
        self.source = source
        self._cpu = hardware()["cpu"] if cpu is None else cpu
        self._seen: list[dict[str, list[tuple[float, float, bool]]]] = [{} for _ in _DEGREES]
        self.count = 0
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Take a row into account if it tells a time."""
        if row["status"] != "ok" or not isinstance(row.get("config"), Mapping):
            return
        trainer = trainer_of(row)
        wall, work = row.get("wall_time_s"), trainer.work_of(row)
        if not wall or not work:
            return
        training = min(row.get("train_time_s") or wall, wall)
        here = (row.get("hardware") or {}).get("cpu") == self._cpu
        link = row.get("link_rate_asked"), row.get("link_delay_ms")
        for degree, likeness in enumerate(_likenesses(trainer, row["config"], row["world_size"], link)):
            self._seen[degree].setdefault(likeness, []).append((wall - training, training / work, here))
        self.count += 1

    def seconds(self, cell: Cell) -> float | None:
        """The seconds that a cell will take; None when no run of its model is known, or its work is not."""
        alike = self._most_alike(cell)
        if alike is None or cell.work is None:
            return None
        _, runs = alike
        here = [run for run in runs if run[2]] or runs
        return statistics.median(fixed + rate * cell.work for fixed, rate, _ in here)

    def total(self, cells: Sequence[Cell]) -> tuple[float, int]:
        """The seconds of the cells that can be estimated, and how many cannot."""
        known = [seconds for cell in cells if (seconds := self.seconds(cell)) is not None]
        return sum(known), len(cells) - len(known)

    def basis(self, cells: Sequence[Cell]) -> str:
        """What the estimate rests on, in words."""
        nearest = [nearest for cell in cells if (nearest := self._most_alike(cell)) is not None]
        elsewhere = any(not any(run[2] for run in alike) for _, alike in nearest)
        kinds = _DEGREES[max((degree for degree, _ in nearest), default=0)]
        machine = ", of other machines" if elsewhere else ""
        runs = f"{self.count} finished run{'s' * (self.count != 1)} in {self.source}"
        return f"estimated by {cells[0].trainer.unit} from {runs}, {kinds}{machine}"

    def _most_alike(self, cell: Cell) -> tuple[int, list[tuple[float, float, bool]]] | None:
        link = cell.key.link_rate, cell.key.link_delay_ms
        likenesses = _likenesses(cell.trainer, cell.config.resolved(), cell.world_size, link)
        for degree, (likeness, seen) in enumerate(zip(likenesses, self._seen, strict=True)):
            if likeness in seen:
                return degree, seen[likeness]
        return None


def _likenesses(trainer: Trainer, config: Mapping[str, Any], world_size: int, link: tuple[Any, Any]) -> list[str]:
    """The features by which runs are alike, from the most specific to the least."""
    model = [trainer.name, *(config.get(name) for name in trainer.named_by)]
    alike = [*model, *(config.get(name) for name in trainer.alike)]
    place = [*alike, world_size, config.get(VIRTUAL) or 0, link]
    arm = [*place, *(config.get(name) for name in _COMM)]
    return [json.dumps(what, sort_keys=True) for what in (arm, place, alike, model)]
