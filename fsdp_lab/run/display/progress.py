"""What a person sees while it trains: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn, TextIO

from tqdm import tqdm

_ON_BAR = ("loss", "val_ppl", "val_tau")  # what a line of the terminal has room for; logs have all
_EVENTS_ALONE = ("memory", "positions")  # folders of scalars that no line has room for


class Progress:
    """The output of rank 0; that of the other ranks is silent.

    Until training begins, and after it has ended, there are only lines on stdout. In between there is a bar where
    there is a terminal. run_safe_training.sh pipes everything through tee, so no rank sees a terminal. When the script
    has one itself it names it in FSDP_LAB_TERMINAL, and its log in FSDP_LAB_LOG: then the bar is drawn there, and the
    plain lines go to the log alone.
    """

    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks
        self._total = 0
        self._terminal: TextIO | None = None
        self._bar: tqdm[NoReturn] | None = None
        self._lines = sys.stdout if speaks else None
        self._on_bar: dict[str, str] = {}
        self._track: Callable[[int, Mapping[str, float | None]], None] | None = None

    def begin(
        self, total_steps: int, track: Callable[[int, Mapping[str, float | None]], None] | None = None, done: int = 0
    ) -> None:
        """Training begins, or goes on after ``done`` steps; ``track`` is given all numbers, for trackers."""
        if not self._speaks:
            return
        self._total, self._track = total_steps, track
        self._terminal = _terminal()
        if self._terminal is not None:
            self._bar = tqdm(total=total_steps, initial=done, unit="step", dynamic_ncols=True, file=self._terminal)
            self._lines = _log_beside_a_bar()

    def step(self) -> None:
        """Move the bar on by one optimizer step."""
        if self._bar is not None:
            self._bar.update()

    def report(self, step: int, scalars: Mapping[str, float]) -> None:
        """Show the latest numbers after ``step`` steps."""
        self.record(step, scalars)
        shown = {_plain(name): _short(value) for name, value in scalars.items() if _is_shown(name)}
        if self._bar is not None:
            self._on_bar |= {name: value for name, value in shown.items() if name in _ON_BAR}
            self._bar.set_postfix(self._on_bar)
        self._print(
            f"step {step:>{len(str(self._total))}}/{self._total}  " + "  ".join(f"{k} {v}" for k, v in shown.items())
        )

    def record(self, step: int, scalars: Mapping[str, float | None]) -> None:
        """Pass numbers to the trackers alone."""
        if self._track is not None:
            self._track(step, scalars)

    def say(self, text: str) -> None:
        """Write a line of its own, above the bar where there is one."""
        if self._bar is not None:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self._bar.write(text, file=self._terminal)
        self._print(text)

    def busy(self, what: str | None) -> None:
        """Write in front of the bar what a step waits for; None: it waits no more."""
        if self._bar is not None:
            self._bar.set_description_str(what)

    def _print(self, line: str) -> None:
        if self._lines is not None:
            print(line, file=self._lines, flush=True)

    def leave_bar(self) -> None:
        """Whatever is said from now on begins a line of its own, on stdout."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            self._lines = sys.stdout


def _terminal() -> TextIO | None:
    if "FSDP_LAB_TERMINAL" in os.environ:
        with contextlib.suppress(OSError):
            return open(os.environ["FSDP_LAB_TERMINAL"], "w", opener=_not_as_ours)
    return sys.stderr if sys.stderr.isatty() else None


def _not_as_ours(path: str, flags: int) -> int:
    """torchrun's ranks lead sessions of their own, which take the first terminal they open for theirs: its Ctrl-C."""
    return os.open(path, flags | os.O_NOCTTY)


def _log_beside_a_bar() -> TextIO | None:
    """The file that plain lines go to while a bar is drawn, if there is one."""
    return open(os.environ["FSDP_LAB_LOG"], "a") if "FSDP_LAB_LOG" in os.environ else None


def _is_shown(name: str) -> bool:
    return name.partition("/")[0] not in _EVENTS_ALONE


def _plain(name: str) -> str:
    """A scalar's name without its folder in TensorBoard; validation's keep it, as there are two losses."""
    folder, _, last = name.rpartition("/")
    return f"val_{last}" if folder == "val" else last


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
