"""What is said of a published system: its paper, its recipes in this project's settings, and what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Paper:
    """Where a system was published. ``arxiv``: its number there, such as ``2410.15526``; empty: none."""

    authors: str
    year: int
    title: str
    arxiv: str = ""

    @property
    def reference(self) -> str:
        """The paper in one line: authors, title, year and, where it has one, its arXiv number."""
        number = f", arXiv {self.arxiv}" if self.arxiv else ""
        return f'{self.authors}, "{self.title}", {self.year}{number}'


@dataclass(frozen=True)
class Recipe:
    """One way to run a system here: what ``--system NAME`` stands for.

    ``settings``: those of `CommConfig`, by flag, as they would be typed; a label says what it says anywhere else.
    ``about``: which part or reading of the system this is, in one sentence. ``needs``: flags that are no settings of
    communication, with the least value that the recipe can run with, or the word that it has to be. ``measured_with``:
    such flags that it could do without, as it was measured. ``ranks``: the fewest ranks that it can run on.

    Bits of one element, in float32, of methods whose messages have a fixed size (None: shapes or values decide, or the
    recipe does not say this direction): ``gradient_bits`` of one reduce-scatter, after any warm-up; ``parameter_bits``
    of one all-gather; ``outer_bits`` of local steps, a parameter and optimizer step, by the default number of local
    steps and for two replicas; ``optimizer_bits`` of what an optimizer exchanges between two replicas, a parameter and
    step, of matrices whose sides 64 divides.
    """

    name: str
    about: str
    settings: Mapping[str, Any]
    needs: Mapping[str, int | str] = field(default_factory=dict)
    measured_with: Mapping[str, str] = field(default_factory=dict)
    gradient_bits: float | None = None
    parameter_bits: float | None = None
    outer_bits: float | None = None
    optimizer_bits: float | None = None
    ranks: int = 2

    @property
    def flags(self) -> list[tuple[str, str]]:
        """The recipe without its name: flags of the trainer and their values."""
        return [(flag, str(value)) for flag, value in self.settings.items()]


@dataclass(frozen=True)
class System:
    """One published system.

    ``name`` is that of its first recipe. ``about``: what it does, in one line. ``paper``: None for what is no paper's.
    ``does``: what its authors describe. ``here``: what of it is reproduced. ``differs``: what is otherwise, and why.
    ``published``: bits, quality and speed as its source says them, each with its setting; ``measured``: what was
    found here, with its setting.
    """

    name: str
    about: str
    paper: Paper | None
    does: str
    here: str
    differs: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    published: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A system that no settings of this project express. ``why``: what is missing, in a sentence."""

    name: str
    source: str
    why: str
