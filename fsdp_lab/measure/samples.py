"""Gradients are compared with the exact ones in a few steps only, because the comparison costs time and bytes."""

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
        """Put together what every rank found for its own part."""
        whole = sum(by_rank, cc.Comparison())
        return cls(whole.relative_error, whole.cosine, whole.residual_norm, whole.density)


class Samples:
    """All samples of a run, and their means for the results row."""

    def __init__(self) -> None:
        self._taken: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Take one more sample into the averages."""
        self._taken.append(sample)

    def state_dict(self) -> list[dict[str, float | None]]:
        """All samples so far, as plain values."""
        return [asdict(sample) for sample in self._taken]

    def load_state_dict(self, taken: list[dict[str, float | None]]) -> None:
        """Go on with the samples of another process, as its `state_dict` gave them."""
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
