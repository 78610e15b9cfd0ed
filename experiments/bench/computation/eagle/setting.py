"""What one run of the benchmark is to train, and what it took."""

from __future__ import annotations

from dataclasses import dataclass

OURS, PLAIN = "ours", "plain"


@dataclass(frozen=True)
class Setting:
    """The setting of one row of the table."""

    length: int
    vocabulary: int
    draft_vocabulary: int
    hidden: int
    layers: int
    batch: int
    steps_ahead: int
    steps: int
    threads: int


@dataclass(frozen=True)
class Measurement:
    """What one run took. ``first_loss`` is that of the first step; GB are 1e9 bytes."""

    tokens_per_s: float
    peak_gb: float
    above_start_gb: float
    first_loss: float
