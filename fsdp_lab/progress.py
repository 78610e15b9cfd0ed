"""What a person sees while it trains: a bar on a terminal, plain lines elsewhere, scalars in TensorBoard."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm


class Progress:
    """Rank 0's voice; the other ranks have a silent one."""

    def __init__(self, total_steps: int, speaks: bool, events: Path | None) -> None:
        self._speaks, self._total = speaks, total_steps
        self._bar = tqdm(total=total_steps, unit="step", dynamic_ncols=True) if speaks and sys.stderr.isatty() else None
        self._writer = _summary_writer(events) if speaks and events is not None else None

    def step(self) -> None:
        """One optimizer step is done."""
        if self._bar is not None:
            self._bar.update()

    def report(self, step: int, scalars: Mapping[str, float]) -> None:
        """Show the latest numbers after ``step`` steps."""
        if self._writer is not None:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, step)
        shown = {name.rpartition("/")[2]: _short(value) for name, value in scalars.items()}
        if self._bar is not None:
            self._bar.set_postfix(shown)
        elif self._speaks:
            print(
                f"step {step:>{len(str(self._total))}}/{self._total}  "
                + "  ".join(f"{k} {v}" for k, v in shown.items())
            )
            sys.stdout.flush()

    def say(self, text: str) -> None:
        """A line of its own (without breaking a bar)."""
        if self._bar is not None:
            self._bar.write(text)
        elif self._speaks:
            print(text, flush=True)

    def close(self) -> None:
        """The last word."""
        if self._bar is not None:
            self._bar.close()
        if self._writer is not None:
            self._writer.close()


def _summary_writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter  # a third of a second: only where it is used

    return SummaryWriter(str(folder))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
