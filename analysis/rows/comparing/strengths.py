"""One method at several strengths: arms that differ in nothing but one number among their settings.

``topk`` (at its default), ``topk ratio=0.05`` and ``topk ratio=0.2`` are; ``int4 hadamard`` is not of ``int4
block_size=32``'s, nor is ``topk ratio=0.2`` of those whose positions are coded otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from analysis.rows.comparing.arms import Arm

Side = Literal["gradient_settings", "parameter_settings"]


@dataclass(frozen=True)
class Strengths:
    """Arms that differ in the number ``key`` of one method's settings; one of them may leave it at its default."""

    key: str
    side: Side
    arms: tuple[Arm, ...]

    @property
    def head(self) -> Arm:
        """The arm whose name stands for all of them: the one at the default, otherwise the first."""
        return next((arm for arm in self.arms if self.value(arm) is None), self.arms[0])

    def value(self, arm: Arm) -> float | None:
        """The arm's own number; None: the default."""
        value: float | None = json.loads(getattr(arm, self.side)).get(self.key)
        return value

    def short(self, arm: Arm) -> str:
        """What to call an arm beside the head: ``ratio=0.05``."""
        return arm.label if arm == self.head else f"{self.key}={self.value(arm)}"


def strengths(arms: Sequence[Arm]) -> list[Strengths]:
    """The groups of arms that are strengths of one method; an arm is in one group at most, the largest."""
    keys = dict.fromkeys(pair for arm in arms for pair in _numbers(arm))
    grouped: dict[tuple[str, Side, Arm], list[Arm]] = {}
    for key, side in keys:
        for arm in dict.fromkeys(arms):
            grouped.setdefault((key, side, _without(arm, key, side)), []).append(arm)
    groups: list[Strengths] = []
    free = set(arms)
    for (key, side, _), alike in sorted(grouped.items(), key=lambda item: -len(item[1])):
        left = [arm for arm in alike if arm in free]
        if len(left) > 1:
            groups.append(Strengths(key, side, tuple(left)))
            free -= set(left)
    return groups


def _numbers(arm: Arm) -> Iterator[tuple[str, Side]]:
    sides: tuple[Side, ...] = ("gradient_settings", "parameter_settings")
    for side in sides:
        for key, value in json.loads(getattr(arm, side)).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield key, side


def _without(arm: Arm, key: str, side: Side) -> Arm:
    settings = json.loads(getattr(arm, side))
    rest = json.dumps({name: value for name, value in settings.items() if name != key}, sort_keys=True)
    return (
        replace(arm, gradient_settings=rest) if side == "gradient_settings" else replace(arm, parameter_settings=rest)
    )
