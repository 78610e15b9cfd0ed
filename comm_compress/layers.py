"""Different methods for different parameters of one unit."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from comm_compress.compressor import Compressor, claim_as
from comm_compress.parts import InParts, Part
from comm_compress.segments import Segment


class ByLayer(InParts):
    """Each parameter goes by the method of the first pattern that its name matches, or else by ``rest``.

    Patterns are those of `fnmatch` over full parameter names ("*wte*", "transformer.h.*.mlp.*"). Within a unit
    the methods run one after another, each over its parameters' columns side by side: one exchange (or
    more) for every method that occurs in the unit.
    """

    def __init__(self, layers: Mapping[str, Compressor], rest: Compressor) -> None:
        super().__init__()
        self.layers, self.rest = dict(layers), rest
        claim_as(self, rest, *self.layers.values())
        self.needs_segments = True
        self.settings = {
            **rest.settings,
            "layers": {pattern: {"method": c.name, **c.settings} for pattern, c in self.layers.items()},
        }

    def _find_parts(self, n: int, segments: tuple[Segment, ...]) -> list[Part]:
        """The methods that occur in a unit with rows of ``n``, in the patterns' order."""
        if n and not segments:
            raise ValueError(f"{self.name}: layers needs to know which parameter lies where (State.segments)")
        columns: dict[str, list[Segment]] = {}
        for segment in segments:
            pattern = next((p for p in self.layers if fnmatch.fnmatchcase(segment.name, p)), "")
            columns.setdefault(pattern, []).append(segment)
        return [
            Part.of(f"layers:{pattern}", self.layers.get(pattern, self.rest), columns[pattern])
            for pattern in [*self.layers, ""]
            if pattern in columns
        ]
