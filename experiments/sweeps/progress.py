"""What the user sees while a sweep runs, a line a cell that ended; and the summary when it is over.

On a terminal the last line is alive: what runs, how far it is, and the time left.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from experiments.sweeps.estimate import Estimator
from experiments.sweeps.plan import Plan
from experiments.sweeps.recipe.cells import Cell, varying
from experiments.sweeps.text import aligned, duration

Row = Mapping[str, Any]
_CLEAR_LINE = "\r\x1b[K"


class Running(Protocol):
    """What the progress line shows of a cell that runs."""

    cell: Cell
    config: Any
    started: float


class Progress:
    """Prints lines to ``stream``; the time left is that of an `Estimator`, which learns from every cell that ends."""

    def __init__(self, plan: Plan, estimator: Estimator, jobs: int, stream: TextIO) -> None:
        self.plan, self.estimator, self.jobs, self.stream = plan, estimator, jobs, stream
        self.is_terminal = stream.isatty()
        self._quality = plan.recipe.trainer.quality
        self._names = varying(plan.cells)
        self._widths = [max(len(text) for text in column) for column in zip(*self._choices(), strict=True)]
        self._has_heading = False
        self._seen_elsewhere: set[int] = set()
        self._live = ""

    def ended(
        self, cell: Cell, row: Row, seconds: float, left: Iterable[Cell], note: str = "", log: Path | None = None
    ) -> None:
        """Print that a cell has a row: ours after ``seconds``, or another process's (0); ``left`` are those still to
        end."""
        self.estimator.add(row)
        if not self._has_heading:
            self._write(
                self._line(
                    "cell", ["seed", *self._names, "arm"], "status", self._quality.heading, "ms/step", "took", "left"
                )
            )
            self._has_heading = True
        step = row.get("step_time_ms_p50")
        self._write(
            self._line(
                f"{cell.number}/{self.plan.total}",
                self._choice(cell),
                row["status"],
                self._quality.said(row),
                "-" if step is None else f"{step:.0f}",
                duration(seconds) if seconds else "elsewhere",
                self._left(left),
            )
        )
        if note:
            self._write(f"    {note}")
        if log is not None:
            self._write(f"    its output: {log}")

    def elsewhere(self, cell: Cell) -> None:
        """Print, once, that another process runs the cell."""
        if cell.number not in self._seen_elsewhere:
            self._seen_elsewhere.add(cell.number)
            self._write(
                f"cell {cell.number} ({cell.arm.label}, seed {cell.seed}) is run by another process; it can wait"
            )

    def tick(self, running: Sequence[Running], waiting: Sequence[Cell]) -> None:
        """Draw the line of running cells anew, on a terminal only."""
        if not self.is_terminal or not running:
            return
        told = [self._told(attempt) for attempt in running]
        left = self._left([*waiting, *(attempt.cell for attempt in running)])
        text = f"running {'; '.join(told)}; left {left}"
        self._live = text[: shutil.get_terminal_size().columns - 1]
        self.stream.write(_CLEAR_LINE + self._live)
        self.stream.flush()

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self._write(text)

    def close(self) -> None:
        """Remove the line of running cells from the terminal."""
        if self._live:
            self.stream.write(_CLEAR_LINE)
            self._live = ""

    def _write(self, text: str) -> None:
        self.close()
        self.stream.write(text + "\n")
        self.stream.flush()

    def _line(
        self, cell: str, choice: Sequence[str], status: str, quality: str, step: str, took: str, left: str
    ) -> str:
        heads = [text.ljust(width) for text, width in zip(choice, self._widths, strict=True)]
        end = f"{status:9}{quality:>10}{step:>9}  {took:>12}  {left}"
        return "  ".join([f"{cell:>9}", *heads, end])

    def _choices(self) -> list[list[str]]:
        return [["seed", *self._names, "arm"], *(self._choice(cell) for cell in self.plan.cells)]

    def _choice(self, cell: Cell) -> list[str]:
        return [str(cell.seed), *(cell.varied[name] for name in self._names), cell.arm.label]

    def _left(self, cells: Iterable[Cell]) -> str:
        cells = list(cells)
        seconds, unknown = self.estimator.total(cells)
        if not cells:
            return "-"
        more = f" and {unknown} unknown" if unknown else ""
        return f"about {duration(seconds / self.jobs)}{more}" if unknown < len(cells) else "unknown"

    def _told(self, attempt: Running) -> str:
        cell = attempt.cell
        path = Path(attempt.config.run.curves_dir) / f"{attempt.config.run.run_name}.jsonl"
        step, total = _last_step(path), cell.config.optim.max_steps
        how_far = f"step {step}{f' of {total}' if total else ''}" if step else "starting"
        seconds = duration(time.monotonic() - attempt.started)
        return f"{cell.number}/{self.plan.total} {cell.arm.label} seed {cell.seed}: {how_far}, {seconds}"


def _last_step(curve: Path) -> int | None:
    """The step that a run has come to, by the curve that it writes as it goes."""
    try:
        with curve.open("rb") as file:
            file.seek(max(0, curve.stat().st_size - 4096))
            lines = file.read().splitlines()
        return int(json.loads(lines[-1])["step"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def summary(plan: Plan) -> str:
    """A table by arm: how many seeds ended well, their mean quality and median step. A failed run never enters an
    average unseen."""
    names, quality = varying(plan.cells), plan.recipe.trainer.quality
    mean = f"mean {quality.heading}"
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in plan.cells:
        groups.setdefault((*(cell.varied[name] for name in names), cell.arm.label), []).append(cell)
    table = [[*names, "arm", "seeds", mean, "ms/step"]]
    for choice, cells in groups.items():
        rows = [past.ok for cell in cells if (past := plan.past.get(cell.key)) and past.ok is not None]
        failed = sum(plan.state(cell) == "failed" for cell in cells)
        values = [row[quality.column] for row in rows if row[quality.column] is not None]
        steps = [row["step_time_ms_p50"] for row in rows if row["step_time_ms_p50"] is not None]
        text = f"{failed} failed" if failed else format(statistics.mean(values), quality.form) if values else "-"
        seeds = f"{len(rows)} of {len(cells)}"
        table.append([*choice, seeds, text, f"{statistics.median(steps):.0f}" if steps else "-"])
    return aligned(table, right={"ranks", "seeds", mean, "ms/step"}).lstrip("\n")
