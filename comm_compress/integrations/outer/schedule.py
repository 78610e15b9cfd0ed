"""After which step a fragment is sent, and after which it is applied."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """When the fragments of a model are synchronised; steps are inner ones, counted from 1.

    ``every`` (H): each fragment is sent every so many steps.
    ``num_fragments`` (P): the fragments take turns, about H / P steps apart; the first one has its turn at multiples of
    H. With one fragment all parameters are sent at once; with none nothing takes local steps.
    ``overlap`` (tau): a fragment is applied so many steps after it was sent; 0: at once.
    ``mixing`` (alpha): the share of a replica's own parameters in those that it goes on with. 0 takes the outer
    parameters, and so drops what a replica learnt in the tau steps; 1 would never listen to the others.
    ``gradient_every``: the gradients of what goes by gradients are exchanged in every so many steps; None: ``every``.
    The first four are those of Streaming DiLoCo (arXiv 2501.18512, algorithm 2). Raises ValueError for what makes no
    sense.
    """

    every: int
    num_fragments: int = 1
    overlap: int = 0
    mixing: float = 0.0
    gradient_every: int | None = None

    def __post_init__(self) -> None:
        named = {"every": self.every, "fragments": self.num_fragments, "overlap": self.overlap}
        named |= {} if self.gradient_every is None else {"gradient_every": self.gradient_every}
        for name, value in named.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name} = {value!r}: must be a whole number")
        for name in named.keys() & {"every", "gradient_every"}:
            if named[name] < 1:
                raise ValueError(f"{name} = {named[name]}: must be 1 step or more")
        if not 0 <= self.num_fragments <= self.every:
            raise ValueError(
                f"fragments = {self.num_fragments}: must be from 1 to every = {self.every}, so that no two share a step"
            )
        if not 0 <= self.overlap < self.every:
            raise ValueError(
                f"overlap = {self.overlap}: must be from 0 to every - 1 = {self.every - 1}: a fragment is applied "
                "before it is sent again"
            )
        if not 0 <= self.mixing < 1:
            raise ValueError(f"mixing = {self.mixing!r}: must be at least 0 and less than 1")
        if self.mixing and not self.overlap:
            raise ValueError(
                f"mixing = {self.mixing!r}: only with overlap, where a replica has gone on since a fragment was sent"
            )

    def sent_after(self, step: int) -> list[int]:
        """Which fragments are sent after this step."""
        return [p for p in range(self.num_fragments) if step % self.every == p * self.every // self.num_fragments]

    def exchanges_gradients(self, step: int) -> bool:
        """Are gradients of what goes by gradients exchanged in this step?"""
        return step % (self.every if self.gradient_every is None else self.gradient_every) == 0

    @property
    def halfway(self) -> int:
        """How many steps after it was sent the second half of a fragment's exchange begins."""
        return math.ceil(self.overlap / 2)
