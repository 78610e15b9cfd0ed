"""What is looked at every so many steps only, because looking costs something."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import comm_compress as cc


@dataclass(frozen=True)
class Sample:
    """How far one step's reduced gradient is from the exact one, all units and ranks together."""

    grad_rel_error: float | None
    grad_cos_sim: float | None
    residual_norm: float | None
    density: float | None

    @classmethod
    def of(cls, by_rank: list[cc.Comparison]) -> Sample:
        """From the ranks' parts."""
        whole = sum(by_rank, cc.Comparison())
        return cls(whole.relative_error, whole.cosine, whole.residual_norm, whole.density)


class Samples:
    """The samples of a run, and their means for the row."""

    def __init__(self) -> None:
        self._taken: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """One more."""
        self._taken.append(sample)

    def state_dict(self) -> list[dict[str, float | None]]:
        """Every sample, as plain values."""
        return [asdict(sample) for sample in self._taken]

    def load_state_dict(self, taken: list[dict[str, float | None]]) -> None:
        """Put back what `state_dict` gave."""
        self._taken = [Sample(**values) for values in taken]

    def row(self) -> dict[str, Any]:
        """The means over the samples that have a value; null where none has."""
        taken = [asdict(sample) for sample in self._taken]
        names = Sample.__dataclass_fields__
        return {name: _mean([s[name] for s in taken if s[name] is not None]) for name in names} | {
            "grad_samples": len(taken)
        }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
