"""How every figure looks: sizes, fonts, spines, the foot line, and how it is saved.

A figure's function takes a `Style` and draws inside it:

    def draw(comparison: Comparison, style: Style) -> Figure:
        with style:
            figure, axes = style.axes()
            axes.plot(x, y, **style.line("topk"))
            axes.set_xlabel(style.say("step"))
            style.foot(figure, verdict="3 seeds; nothing found")
        return figure

Figures are made without pyplot, so that none stays in memory behind the caller's back. The same figure gives the same
bytes whenever it is saved.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.figures.drawing import catalogue as words, fonts
from analysis.figures.drawing.formats import FORMATS
from analysis.figures.drawing.palette import look, shade

Medium = Literal["print", "slides"]
Columns = Literal["single", "double"]
Language = Literal["en", "zh"]
DPI = 300
# inches. Print: a column and a page of a two-column paper; slides: half and all of a 16:9 page (13.33 x 7.5)
WIDTHS: dict[tuple[Medium, Columns], float] = {
    ("print", "single"): 3.3,
    ("print", "double"): 7.0,
    ("slides", "single"): 6.4,
    ("slides", "double"): 12.6,
}
FONT: dict[Medium, float] = {"print": 7.5, "slides": 15.0}  # points; nothing is below 0.85 of it
GREY = "#5F5F5F"  # of text beside the point: 6.4:1 against white
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))


@dataclass(frozen=True)
class Style:
    """What a figure is drawn for. Used as a context, it sets matplotlib's parameters and restores them afterwards."""

    medium: Medium = "print"
    columns: Columns = "double"
    language: Language = "en"
    _open: list[contextlib.ExitStack] = field(default_factory=list, repr=False, compare=False)

    @property
    def width(self) -> float:
        """Width of a figure, in inches."""
        return WIDTHS[self.medium, self.columns]

    @property
    def font(self) -> float:
        """Size of labels in points."""
        return FONT[self.medium]

    @property
    def small(self) -> float:
        """Size of ticks, legends and direct labels, in points."""
        return 0.88 * self.font

    @property
    def stroke(self) -> float:
        """Width of a line of data, in points."""
        return 1.2 if self.medium == "print" else 2.4

    def parameters(self) -> Any:  # matplotlib types the keys one by one
        """matplotlib's parameters for all that is drawn in this style. ValueError: no font for the language."""
        families = ["DejaVu Sans"] if self.language == "en" else ["DejaVu Sans", fonts.chinese()]
        thin = self.stroke / 2
        return {
            "font.family": families,
            "font.size": self.font,
            "axes.titlesize": self.font,
            "axes.labelsize": self.font,
            "axes.titlelocation": "left",
            "xtick.labelsize": self.small,
            "ytick.labelsize": self.small,
            "legend.fontsize": self.small,
            "legend.title_fontsize": self.small,
            "legend.frameon": False,
            "legend.handlelength": 1.8,
            "legend.borderaxespad": 0.2,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": thin,
            "xtick.major.width": thin,
            "ytick.major.width": thin,
            "xtick.minor.width": 0.7 * thin,
            "ytick.minor.width": 0.7 * thin,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#D9D9D9",
            "grid.linewidth": 0.7 * thin,
            "lines.linewidth": self.stroke,
            "lines.markersize": 0.6 * self.font,
            "hatch.linewidth": 0.7 * thin,
            "figure.constrained_layout.use": True,
            "svg.fonttype": "none",  # text stays text: searchable, and editable in a drawing program
            "svg.hashsalt": "fsdp-comm-compress",
            "pdf.fonttype": 42,  # text as TrueType, which publishers ask for
            "savefig.dpi": DPI,
            "path.simplify": False,
            "text.parse_math": False,  # names of arms may have dollars in them; no label of ours is mathematics
        }

    def __enter__(self) -> Style:
        stack = contextlib.ExitStack()
        stack.enter_context(matplotlib.rc_context(self.parameters()))
        self._open.append(stack)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.pop().close()

    def say(self, text: str, **values: object) -> str:
        """The text, an English label of `catalogue`, in this style's language, with ``values`` put in."""
        return words.say(text, self.language, **values)

    def axes(
        self, rows: int = 1, columns: int = 1, *, height: float | None = None, **options: Any
    ) -> tuple[Figure, Any]:
        """A figure of this style's width and its Axes (an array of them when there are several).

        ``height`` is in units of the width, by default 0.75 for one column and 0.45 for two. ``options`` are those of
        subplots."""
        ratio = height if height is not None else (0.75 if self.columns == "single" else 0.45)
        figure = self.sheet(self.width * ratio)
        return figure, figure.subplots(rows, columns, **options)

    def sheet(self, height: float) -> Figure:
        """A figure of this style's width and ``height`` inches, without axes."""
        figure = Figure(figsize=(self.width, height))
        FigureCanvasAgg(figure)
        return figure

    def line(self, family: str, strength: int = 0, **more: Any) -> dict[str, Any]:
        """Arguments of ``plot`` for a line. ``strength``, the arm's place in its family, decides the dashes."""
        return {"color": look(family).colour, "linestyle": DASHES[strength % len(DASHES)], "lw": self.stroke} | more

    def marked_line(self, family: str, strength: int = 0, **more: Any) -> dict[str, Any]:
        """Arguments of ``plot`` for a `line` with the family's marker here and there, for those who see no colours."""
        marks = self.points(family, 0.75)
        del marks["ls"], marks["color"]
        return self.line(family, strength) | marks | {"mfc": look(family).colour, "markevery": (0.1, 0.3)} | more

    def points(self, family: str, strength: float = 1.0, **more: Any) -> dict[str, Any]:
        """Arguments of ``plot`` for markers without a line. ``strength`` is a factor of their size."""
        seen = look(family)
        size = 0.6 * self.font * strength
        edge = seen.colour if seen.marker in "x+" else shade(seen.colour, -0.35)
        drawn = {
            "color": seen.colour,
            "marker": seen.marker,
            "ls": "none",
            "ms": size * (1.4 if seen.marker == "*" else 1.0),
            "mec": edge,
            "mew": self.stroke / (1 if seen.marker in "x+" else 3),
        }
        return drawn | more

    def foot(self, figure: Figure, text: str) -> None:
        """Write the fairness verdict and notes below everything, at the left; long lines are broken."""
        figure.supxlabel("\n".join(self._foot_lines(text)), x=0.005, ha="left", fontsize=self.small, color=GREY)

    def foot_height(self, text: str) -> float:
        """How many inches `foot` takes from a figure for this text."""
        return 1.4 * self.small / 72 * len(self._foot_lines(text))  # of a font's line, with its spacing

    def _foot_lines(self, text: str) -> list[str]:
        ems = 72 * self.width / self.small
        lines = []
        for line in text.splitlines():
            letter = 0.57 if line.isascii() else 1.0  # its width over its size, of a wide line
            lines += textwrap.wrap(line, int(ems / letter))
        return lines


def save(figure: Figure, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write ``folder/name.FORMAT`` for every format and return the paths. The bytes depend on the figure alone.

    ValueError for a format that is not one of `FORMATS`, and for a folder that cannot be written.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown:
        raise ValueError(f"format: got {unknown[0]!r}, wants {', '.join(FORMATS)}")
    undated: dict[str, dict[str, None]] = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        "png": {"Software": None},
    }
    paths = [folder / f"{name}.{extension}" for extension in formats]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(Style().parameters()):
            for path, extension in zip(paths, formats, strict=True):
                figure.savefig(path, format=extension, metadata=undated[extension])
    except OSError as error:
        raise ValueError(f"cannot write figures to {folder} ({error.strerror}); name another folder") from None
    return paths
