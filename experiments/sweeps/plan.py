"""What of a sweep is done already, what is to do, and what that will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.sweeps.estimate import Estimator
from experiments.sweeps.recipe.cells import Cell, Key, key_of, varying
from experiments.sweeps.recipe.recipe import Recipe
from experiments.sweeps.recipe.start import Start
from experiments.sweeps.text import aligned, duration
from fsdp_lab.results.store import scan
from fsdp_lab.run.environment import environment

Row = Mapping[str, Any]
State = Literal["finished", "failed", "to run"]
TRIES = 2  # of a cell that fails


@dataclass(frozen=True)
class Past:
    """What a results file says of one cell."""

    ok: Row | None = None
    failures: int = 0


@dataclass(frozen=True)
class Plan:
    """A recipe's cells (picked from ``total``, if one alone is wanted), their past, and the results file's rows."""

    recipe: Recipe
    cells: Sequence[Cell]
    past: Mapping[Key, Past]
    rows: Sequence[Row]
    total: int
    retry_failed: bool = False

    def state(self, cell: Cell) -> State:
        """Is the cell finished, failed for good, or to run (a first or a second time)?"""
        past = self.past.get(cell.key, Past())
        if past.ok is not None:
            return "finished"
        return "failed" if past.failures >= TRIES and not self.retry_failed else "to run"

    def to_run(self) -> list[Cell]:
        """The cells to run, in order."""
        return [cell for cell in self.cells if self.state(cell) == "to run"]

    def starts_to_train(self) -> list[Start]:
        """The common starts that cells to run begin from, and that are not there."""
        needed = {cell.config.resolved().get("model_dir") for cell in self.to_run()}
        return [start for start in self.recipe.starts if str(start.folder) in needed and not start.is_there]

    def tries_left(self, cell: Cell) -> int:
        """How often the cell may still be tried. With ``retry_failed`` earlier failures do not count."""
        past = self.past.get(cell.key, Past())
        return TRIES - (past.failures if past.failures < TRIES else 0)


def past_of(rows: Sequence[Row]) -> dict[Key, Past]:
    """What rows say of every cell that has some; rows of runs that were stopped say nothing."""
    past: dict[Key, Past] = {}
    for row in rows:
        known = past.get(key_of(row), Past())
        if row["status"] == "ok":
            past[key_of(row)] = Past(row, known.failures)
        elif row["status"] == "failed":
            past[key_of(row)] = Past(known.ok, known.failures + 1)
    return past


def sound_rows(path: Path) -> list[Row]:
    """The rows that a file has, without bad lines; none when there is no file."""
    return [row for _, row, _ in scan(path) if row is not None] if path.exists() else []


def describe(plan: Plan, out: Path, estimator: Estimator, jobs: int, here: Row | None = None) -> str:
    """The plan as text. ``here`` has git_commit and hardware of this place (looked up when not given)."""
    recipe, cells = plan.recipe, plan.cells
    states = [plan.state(cell) for cell in cells]
    lines = [f"{recipe.name}: {recipe.about}" if recipe.about else recipe.name, ""]
    counted = ((f"{n} virtual", recipe.virtual_world_sizes) for n in recipe.virtual_world_sizes)
    worlds = [*map(str, recipe.world_sizes), *(text for text, _ in counted)]
    lines += [
        f"cells      {len(cells)} = {len(recipe.arms)} arms x {_product(recipe, worlds)}",
        f"finished   {states.count('finished')}{_elsewhere(plan, here or environment())}",
    ]
    if failed := states.count("failed"):
        lines.append(f"failed     {failed} (each tried {TRIES} times; --retry_failed tries them again)")
    for start in recipe.starts:
        lines.append(f"start      {start.folder}{'' if start.is_there else ', to be trained first'}")
    lines += [
        f"to run     {states.count('to run')}",
        f"tuning     {_budget(recipe)}",
        f"time       {_time(plan.to_run(), estimator, jobs)}",
        f"rows       {out}",
        "",
    ]
    names = varying(cells)
    table = [["cell", "seed", *names, "arm", "state", "time"]]
    for cell, state in zip(cells, states, strict=True):
        seconds = estimator.seconds(cell)
        time = "" if state != "to run" else "unknown" if seconds is None else duration(seconds)
        table.append([str(cell.number), str(cell.seed), *(cell.varied[n] for n in names), cell.arm.label, state, time])
    return "\n".join(lines) + aligned(table, right={"cell", "seed", "ranks", "time"})


def aim(plan: Plan, estimator: Estimator, jobs: int) -> str:
    """What the sweep is to decide, and how long it takes, in a line: what is said before the first cell runs."""
    about = plan.recipe.about or "nothing is said about what this decides"
    return f"{about}; time: {_time(plan.to_run(), estimator, jobs)}"


def reader(recipe: Recipe) -> str:
    """The words after ``fsdp-lab`` that read the rows ({rows}): for arms of several optimizers those of the chart."""
    if not any(arm.training for arm in recipe.arms):
        return recipe.trainer.analysis
    return "chart rates {rows} --out {chosen}" if recipe.tune else "chart {rows} --out chart/"


def _product(recipe: Recipe, worlds: Sequence[str]) -> str:
    factors = [
        (recipe.seeds, "seed"),
        (worlds, "world size"),
        (recipe.subjects, recipe.trainer.noun),
        (recipe.links, "link"),
    ]
    counted = [(len(values), noun) for values, noun in factors]
    counted += [(len(values), f"{name} value") for name, values in recipe.tune.items()]
    return " x ".join(f"{n} {noun}{'s' * (n > 1)}" for n, noun in counted if n > 1 or noun == "seed")


def _budget(recipe: Recipe) -> str:
    if recipe.rates is not None:
        missing = "" if recipe.rates.is_there else " (not there)"
        return f"each arm at the value chosen for it in {recipe.rates.path}{missing}"
    if not recipe.tune:
        return "none: every arm has the same settings, one run a seed"
    values = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in recipe.tune.items())
    return f"the same for every arm: {values}"


def _elsewhere(plan: Plan, here: Row) -> str:
    """How many of the finished rows come from other code or another machine."""
    done = [past.ok for cell in plan.cells if (past := plan.past.get(cell.key)) and past.ok is not None]
    commit = sum(row.get("git_commit") != here["git_commit"] for row in done)
    machine = sum(_machine(row) != _machine(here) for row in done)
    notes = [f"{commit} at another commit"] * (commit > 0) + [f"{machine} on other hardware"] * (machine > 0)
    return f" (of them {', '.join(notes)}; they count)" if notes else ""


def _machine(row: Row) -> Any:
    hardware = row.get("hardware") or {}
    return hardware.get("cpu"), hardware.get("cores"), hardware.get("gpus")


def _time(cells: Sequence[Cell], estimator: Estimator, jobs: int) -> str:
    seconds, unknown = estimator.total(cells)
    if not cells:
        return "nothing to run"
    if unknown == len(cells):
        key = cells[0].trainer.key
        return f"unknown: no finished run of these {key} to go by (--rows FILE names some)"
    at_once = f", {jobs} cells at once" if jobs > 1 else ""
    missing = f"; {unknown} cells unknown" if unknown else ""
    return f"about {duration(seconds / jobs)}{at_once}{missing} ({estimator.basis(cells)})"
