"""Step times: what counts, and what is left out."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch


class StepClock:
    """Times of optimizer steps. Warm-up steps, disturbed steps and everything between steps are left out.

    ``warmup_steps``: the step after which times count, because kernels are compiled and memory is new until then.

    On CUDA a step's time lies between two events on the current stream, read when the numbers are asked for.
    """

    def __init__(self, device: torch.device, warmup_steps: int) -> None:
        self.warmup_steps = self._excluded = warmup_steps
        self._cuda = device.type == "cuda"
        self._started: float | torch.cuda.Event = 0.0
        self._kept: list[float] = []
        self._all: list[float] = []  # wall time, for runs too short to leave any step out
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.train_seconds = 0.0
        """Seconds spent in steps, all of them; a sampled step counts as the median of those that count."""
        self._wall = 0.0

    def start(self) -> None:
        """Start the clock of the step that begins now."""
        self._wall = time.perf_counter()
        self._started = self._event() if self._cuda else self._wall

    def stop(self, keep: bool, sampled: bool = False) -> None:
        """Stop the clock. ``keep``: does the step enter the statistics? ``sampled``: were gradients compared in it?"""
        now = time.perf_counter()
        took = now - self._wall
        if sampled and (kept := self.kept_ms()):
            took = float(np.median(kept)) / 1e3
        self.train_seconds += took
        self._all.append(took * 1e3)
        if not keep:
            return
        if isinstance(self._started, torch.cuda.Event):
            self._events.append((self._started, self._event()))
        else:
            self._kept.append((now - self._started) * 1e3)

    def state_dict(self, step: int) -> dict[str, Any]:
        """Every time so far, after ``step`` steps, as plain values and tensors."""
        return {
            "train_seconds": self.train_seconds,
            "kept_ms": torch.tensor(self.kept_ms(), dtype=torch.float64),
            "all_ms": torch.tensor(self._all, dtype=torch.float64),
            "excluded": self._excluded - max(0, self.warmup_steps - step),
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Go on from the times of another process, which made the first ``step`` steps; this one warms up again."""
        self.train_seconds = state["train_seconds"]
        self._kept, self._all = state["kept_ms"].tolist(), state["all_ms"].tolist()
        self._excluded = state["excluded"] + self.warmup_steps - step

    def kept_ms(self) -> list[float]:
        """The milliseconds of each step that counts."""
        for start, end in self._events:
            end.synchronize()
            self._kept.append(float(start.elapsed_time(end)))
        self._events.clear()
        return self._kept

    def row(self, tokens_per_step: float) -> dict[str, float | int]:
        """The step-time fields of a results row; of a run too short to leave steps out, over all its steps."""
        times = np.array(self.kept_ms() or self._all)
        mean = float(times.mean())
        return {
            "step_time_ms_mean": mean,
            "step_time_ms_p50": float(np.percentile(times, 50)),
            "step_time_ms_p90": float(np.percentile(times, 90)),
            "step_time_ms_p95": float(np.percentile(times, 95)),
            "warmup_steps_excluded": self._excluded if self._kept else 0,
            "steps_timed": len(times),
            "tokens_per_s": tokens_per_step / mean * 1e3,
        }

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
