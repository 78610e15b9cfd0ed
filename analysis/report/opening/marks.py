"""The palette's markers, which have matplotlib's names, as paths of SVG."""

from __future__ import annotations

import math

# corners of a polygon: how many, and at which angle the first one is (degrees from the right, upwards)
_POLYGONS = {
    **{"s": (4, 45), "D": (4, 0), "d": (4, 0), "h": (6, 90), "H": (6, 0), "p": (5, 90), "8": (8, 22.5)},
    **{"^": (3, 90), "v": (3, -90), "<": (3, 180), ">": (3, 0)},
}
_CROSS = ((1, 3), (1, 1), (3, 1), (3, -1), (1, -1), (1, -3), (-1, -3), (-1, -1), (-3, -1), (-3, 1), (-1, 1), (-1, 3))


def mark(marker: str, x: float, y: float, size: float) -> str:
    """The path (attribute ``d``) of a marker around a place; ``size`` is its radius. A circle for unknown ones."""
    if marker in _POLYGONS:
        count, first = _POLYGONS[marker]
        corners = [(math.radians(first + 360 * i / count), 1.15) for i in range(count)]
    elif marker == "*":
        corners = [(math.radians(90 + 36 * i), 1.4 if i % 2 == 0 else 0.6) for i in range(10)]
    elif marker in "PXx":
        turn = 0.0 if marker == "P" else math.pi / 4
        corners = [(math.atan2(b, a) + turn, math.hypot(a, b) / 2.9) for a, b in _CROSS]
    else:
        return f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0z"
    places = [(x + size * r * math.cos(a), y - size * r * math.sin(a)) for a, r in corners]
    return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in places) + "z"
