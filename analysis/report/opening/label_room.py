"""Room for names in a drawing: beside their marks, covering no mark, no other name and, if possible, no line."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
_MARK = 7.0  # px around a mark


class Room:
    """What is free within ``inside``, in px from the upper left corner.

    ``marks`` are never covered; ``lines``, each by its two ends and level or upright, only where all else is taken.
    """

    def __init__(self, inside: Box, marks: Sequence[Place], lines: Sequence[tuple[Place, Place]] = ()) -> None:
        self._inside = inside
        self._lines = [(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for (a, b), (c, d) in lines]
        self._taken: list[Box] = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in marks]

    def take(self, at: Place, width: float, high: float) -> Place | None:
        """Take the first free place near a mark for a name; where its baseline begins, None where nothing is free."""
        x, y = at
        beside = [(x + 11, y - high / 2), (x - 11 - width, y - high / 2)]
        off = [(x - width / 2, y + dy) for dy in (10, -10 - high, 26, -26 - high, 42, -42 - high)]
        aside = [(x + dx, y + dy) for dy in (14, -14 - high, 30, -30 - high) for dx in (8, -8 - width)]
        boxes = [(left, top, left + width, top + high) for left, top in (*beside, *off, *aside)]
        free = [box for box in boxes if self._is_free(box)]
        if not free:
            return None
        clear = [box for box in free if not any(_meet(box, line) for line in self._lines)]
        box = [*clear, *free][0]
        self._taken.append(box)
        return box[0], box[1] + 0.85 * high

    def _is_free(self, box: Box) -> bool:
        left, top, right, bottom = self._inside
        within = left <= box[0] and top <= box[1] and box[2] <= right and box[3] <= bottom
        return within and not any(_meet(box, other) for other in self._taken)


def _meet(one: Box, two: Box) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]
