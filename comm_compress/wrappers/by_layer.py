"""Different methods for different parameters of one unit, chosen by name."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Mapping
from dataclasses import replace

from comm_compress.core.compressor import Compressor
from comm_compress.core.segments import Segment
from comm_compress.core.traits import combine
from comm_compress.wrappers.parts import InParts, Part

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module")
"""What torch.compile, activation checkpointing, FSDP1 and Lightning's Fabric put into the names of what they wrap."""


def unwrapped(name: str) -> str:
    """Return a parameter's name without what wrappers put into it, DDP's "module." in front included."""
    words = [word for word in name.split(".") if word not in WRAPPERS]
    while len(words) > 1 and words[0] == "module":
        words.pop(0)
    return ".".join(words)


def matches(name: str, pattern: str) -> bool:
    """Does a parameter's full name match ``pattern``, as it is or `unwrapped`?"""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(unwrapped(name), pattern)


class ByLayer(InParts):
    """Each parameter goes by the method of the first pattern that its name matches, or else by ``rest``.

    Patterns are those of `fnmatch` over full parameter names ("*wte*", "transformer.h.*.mlp.*"), with or without what
    wrappers of the model put into them (`unwrapped`). One that matches no parameter is refused by `attach`. Within a
    unit the methods run one after another, each over its parameters' columns side by side: one exchange (or
    more) for every method that occurs in the unit.
    """

    def __init__(self, layers: Mapping[str, Compressor], rest: Compressor) -> None:
        super().__init__()
        self.layers, self.rest = dict(layers), rest
        self.name = rest.name
        together = combine(rest.traits, *(method.traits for method in self.layers.values()))
        self.traits = replace(together, needs_segments=True)
        self.settings = {
            **rest.settings,
            "layers": {pattern: {"method": c.name, **c.settings} for pattern, c in self.layers.items()},
        }

    def method_of(self, name: str) -> Compressor:
        """Return the method of the first pattern that ``name`` matches, or that of the rest."""
        return self.layers.get(self._pattern(name), self.rest)

    def _pattern(self, name: str) -> str:
        """Return the first pattern that ``name`` matches; empty when none does."""
        return next((pattern for pattern in self.layers if matches(name, pattern)), "")

    def check_names(self, names: Collection[str], whose: str = "parameter") -> None:
        """ValueError for a pattern that none of ``names`` matches; it says which name comes closest.

        ``whose``: what these are the names of.
        """
        for pattern in self.layers:
            if not any(matches(name, pattern) for name in names):
                close = difflib.get_close_matches(pattern, [unwrapped(name) for name in names], n=1, cutoff=0)
                hint = f"; the closest name is {close[0]!r}" if close else ""
                raise ValueError(
                    f"{self.name}: layers[{pattern!r}] matches no {whose} of this model{hint} (* stands for any text)"
                )
        for pattern in [*self.layers, ""]:
            method = self.layers.get(pattern, self.rest)
            method.check_names([name for name in names if self._pattern(name) == pattern])

    def _find_parts(self, n: int, segments: tuple[Segment, ...]) -> list[Part]:
        """Return the methods that occur in a unit with rows of ``n``, in the patterns' order."""
        if n and not segments:
            raise ValueError(f"{self.name}: layers needs to know which parameter lies where (State.segments)")
        columns: dict[str, list[Segment]] = {}
        for segment in segments:
            columns.setdefault(self._pattern(segment.name), []).append(segment)
        return [
            Part.of(f"layers:{pattern}", self.layers.get(pattern, self.rest), columns[pattern])
            for pattern in [*self.layers, ""]
            if pattern in columns
        ]
