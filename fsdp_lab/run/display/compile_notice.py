"""Tells a user who waits for the first step that kernels are compiled, which may take half a minute."""

from __future__ import annotations

import logging

from fsdp_lab.run.display.progress import Progress


class CompileNotice(logging.Handler):
    """While entered, hears from the library what it compiles, and says so: at the first kernel, and in one line when a
    step is over."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self._progress = progress
        self._compiled: list[tuple[str, float]] = []
        self._log = logging.getLogger("comm_compress")
        self._level = self._log.level

    def __enter__(self) -> CompileNotice:
        self._log.setLevel(logging.INFO)
        self._log.addHandler(self)
        return self

    def __exit__(self, *raised: object) -> None:
        self._log.removeHandler(self)
        self._log.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        """Hear of a kernel that is about to be compiled, or has been."""
        kernel: str | None = getattr(record, "kernel", None)
        seconds: float | None = getattr(record, "seconds", None)
        if kernel is None:
            return
        if seconds is not None:
            self._compiled.append((kernel, seconds))
            self._progress.busy(None)
            return
        if not self._compiled:
            self._progress.say(f"compiling kernels (once for this version): {kernel} ...")
        self._progress.busy(f"compiling {kernel}")

    def after_step(self) -> None:
        """Say in one line what the step has compiled, if anything."""
        if self._compiled:
            names = ", ".join(dict.fromkeys(kernel for kernel, _ in self._compiled))
            seconds = sum(seconds for _, seconds in self._compiled)
            self._progress.say(f"compiled in {seconds:.1f} s: {names}")
            self._compiled = []
