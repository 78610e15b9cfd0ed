"""The system's diagram: where a training step of FSDP2 communicates, and what compression does there.

Lengths are in ems of the style's labels, so that one layout serves print and slides.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from analysis.figures.drawing.style import GREY, Style

Kind = Literal["memory", "compute", "codec", "network", "ledger"]
Side = Literal["left", "right", "top", "bottom"]
# face, edge
COLOURS: dict[Kind, tuple[str, str]] = {
    "memory": ("#FFFFFF", "#595959"),
    "compute": ("#EDEDED", "#8C8C8C"),
    "codec": ("#D8EAF5", "#0072B2"),
    "network": ("#FBE3D4", "#D55E00"),
    "ledger": ("#FFF8D6", "#A89000"),
}


@dataclass(frozen=True)
class Box:
    """A box of the diagram by its centre, width and height, in ems."""

    x: float
    y: float
    width: float
    height: float

    def at(self, side: Side, along: float = 0.0) -> tuple[float, float]:
        """The middle of a side, or the place ``along`` ems from it."""
        if side in ("left", "right"):
            return self.x + self.width / 2 * (1 if side == "right" else -1), self.y + along
        return self.x + along, self.y + self.height / 2 * (1 if side == "top" else -1)


class Board:
    """Empty axes on which the diagram's boxes, arrows and words are drawn."""

    def __init__(self, style: Style, width: float, height: float) -> None:
        """``width`` and ``height`` are in ems; ``width`` ems fill the figure."""
        self.style = style
        self.figure, axes = style.axes(height=height / width)
        self.axes: Axes = axes
        axes.set(xlim=(0, width), ylim=(0, height))
        axes.set_axis_off()
        self.figure.set_layout_engine("constrained", w_pad=0, h_pad=0)

    def box(self, x: float, y: float, width: float, height: float, text: str, kind: Kind) -> Box:
        """Draw a box with ``text`` in the style's language."""
        face, edge = COLOURS[kind]
        shape = FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.35",
            facecolor=face,
            edgecolor=edge,
            linewidth=0.75 * self.style.stroke,
            linestyle="--" if kind == "ledger" else "-",
        )
        self.axes.add_patch(shape)
        self.words(x, y, text)
        return Box(x, y, width, height)

    def words(
        self, x: float, y: float, text: str, *, ha: str = "center", bold: bool = False, grey: bool = False
    ) -> None:
        """Write ``text`` without a box."""
        self.axes.text(
            x,
            y,
            self.style.say(text),
            ha=ha,
            va="center",
            linespacing=1.1,
            fontsize=self.style.font if bold else self.style.small,
            fontweight="bold" if bold and self.style.language == "en" else "normal",
            color=GREY if grey else "black",
            in_layout=False,  # the board is as large as it is asked to be
        )

    def arrow(self, *corners: tuple[float, float], dotted: bool = False) -> None:
        """Draw an arrow along ``corners`` to the last one. Dotted arrows stand for numbers, not tensors."""
        shape = FancyArrowPatch(
            path=Path(corners),
            arrowstyle="-|>",
            mutation_scale=0.75 * self.style.font,
            joinstyle="miter",
            linewidth=0.75 * self.style.stroke,
            linestyle=(0, (1, 1.5)) if dotted else "-",
            color=COLOURS["ledger"][1] if dotted else "#333333",
        )
        self.axes.add_patch(shape)

    def chain(self, boxes: list[Box]) -> None:
        """Draw arrows from each box to the next, left to right."""
        for left, right in itertools.pairwise(boxes):
            self.arrow(left.at("right"), right.at("left"))

    def plus(self, x: float, y: float, size: float) -> Box:
        """Draw the sign of a sum."""
        face, edge = COLOURS["compute"]
        shape = Circle((x, y), size / 2, facecolor=face, edgecolor=edge, linewidth=0.75 * self.style.stroke)
        self.axes.add_patch(shape)
        self.axes.text(x, y, "+", ha="center", va="center", fontsize=self.style.font)
        return Box(x, y, size, size)

    def title(self, x: float, y: float, numbers: str, text: str) -> None:
        """Write the numbers of compression points, then what moves there."""
        for place, number in enumerate(numbers):
            self.badge(x + 0.8 + 1.7 * place, y, number)
        self.words(x + 0.5 + 1.7 * len(numbers), y, text, ha="left", bold=True)

    def point(self, box: Box, number: str) -> None:
        """Draw a compression point's number on its box's corner."""
        self.badge(box.x - box.width / 2 + 0.1, box.y + box.height / 2 - 0.1, number)

    def badge(self, x: float, y: float, number: str) -> None:
        """Draw a number in a disc."""
        self.axes.add_patch(Circle((x, y), 0.75, facecolor=COLOURS["network"][1], edgecolor="white", zorder=3))
        self.axes.text(
            x, y - 0.05, number, ha="center", va="center", color="white", fontsize=0.9 * self.style.small, zorder=4
        )


def draw(style: Style) -> Figure:
    """The diagram for the style's width."""
    with style:
        return _wide(style) if style.columns == "double" else _narrow(style)


def _wide(style: Style) -> Figure:
    board = Board(style, 60, 32)
    board.words(0.3, 31.2, STEP, ha="left", bold=True)
    y, high = 27.4, 3.6
    shard = board.box(4.0, y, 7.6, high, "parameters:\nown shard, fp32", "memory")
    first = board.box(12.9, y, 6.4, high, "all-gather", "network")
    forward = board.box(20.9, y, 5.6, high, "forward", "compute")
    second = board.box(30.1, y, 6.4, high, "all-gather", "network")
    backward = board.box(38.1, y, 5.8, high, "backward", "compute")
    reduce = board.box(46.8, y, 7.8, high, "reduce-scatter", "network")
    update = board.box(56.0, y, 7.6, high, "optimizer:\nown shard", "compute")
    board.chain([shard, first, forward, second, backward, reduce, update])
    board.words(25.1, y + 0.9, "free", grey=True)
    for box, number in ((first, "1"), (second, "2"), (reduce, "3")):
        board.point(box, number)
    below = y - high / 2 - 1.3
    board.arrow(update.at("bottom"), (update.x, below), (shard.x, below), shard.at("bottom"))
    board.words(34.0, below - 0.9, "next step", grey=True)

    places = Places(source=4.6, plus=13.2, encode=19.5, exchange=29.6, decode=40.1, mean=48.5, out=56.0)
    widths = Places(source=8.8, plus=2.0, encode=6.0, exchange=8.6, decode=7.2, mean=5.2, out=7.6)
    _exchanges(board, places, widths, parameters=17.5, ledger=12.6, gradients=7.7, title_x=0.3)
    return board.figure


def _narrow(style: Style) -> Figure:
    board = Board(style, 31, 38)
    board.words(0.2, 37.2, STEP, ha="left", bold=True)
    y, high = 31.9, 3.2
    shard = board.box(4.2, y, 8.2, high, "parameters:\nown shard, fp32", "memory")
    first = board.box(13.3, y, 6.0, high, "all-gather", "network")
    forward = board.box(21.2, y, 5.4, high, "forward", "compute")
    y -= 5.6
    second = board.box(3.7, y, 6.0, high, "all-gather", "network")
    backward = board.box(11.0, y, 5.8, high, "backward", "compute")
    reduce = board.box(19.1, y, 7.6, high, "reduce-scatter", "network")
    update = board.box(27.5, y, 6.2, high, "optimizer:\nown shard", "compute")
    board.chain([shard, first, forward])
    board.chain([second, backward, reduce, update])
    between = y + 2.8
    board.arrow(forward.at("bottom"), (forward.x, between), (second.x, between), second.at("top"))
    board.words(12.3, between + 0.7, "free", grey=True)
    for box, number in ((first, "1"), (second, "2"), (reduce, "3")):
        board.point(box, number)
    above = forward.y + high / 2 + 1.5
    board.arrow(update.at("top"), (update.x, above), (shard.x, above), shard.at("top"))
    board.words(15.5, above + 0.8, "next step", grey=True)

    places = Places(source=3.1, plus=7.65, encode=11.4, exchange=17.2, decode=23.1, mean=None, out=28.5)
    widths = Places(source=6.0, plus=1.6, encode=4.6, exchange=5.6, decode=5.0, mean=None, out=4.8)
    _exchanges(board, places, widths, parameters=18.6, ledger=13.3, gradients=8.0, title_x=0.1)
    return board.figure


STEP = "One training step of an FSDP2 unit on W ranks"


@dataclass(frozen=True)
class Places:
    """The column of each stage of the exchanges, in ems. ``mean`` of None: it shares the last stage's box."""

    source: float
    plus: float
    encode: float
    exchange: float
    decode: float
    mean: float | None
    out: float


def _exchanges(
    board: Board, x: Places, width: Places, *, parameters: float, ledger: float, gradients: float, title_x: float
) -> None:
    """Draw both directions, one above the other stage by stage, and the ledger between them."""
    y, high = parameters, 3.2
    board.title(title_x, y + 3.0, "12", "Parameters")
    shard = board.box(x.source, y, width.source, high, "own shard\n[n / W]", "memory")
    up = [
        board.box(x.encode, y, width.encode, high, "encode", "codec"),
        board.box(x.exchange, y, width.exchange, high, "exchange\nof bytes", "network"),
        board.box(x.decode, y, width.decode, high, "decode\nW rows", "codec"),
    ]
    board.chain([shard, *up, board.box(x.out, y, width.out, high, "whole\nunit [n]", "memory")])

    y = gradients
    board.title(title_x, y + 3.0, "3", "Gradients")
    rows = board.box(x.source, y, width.source, high, "a row a rank\n[W, n / W]", "memory")
    plus = board.plus(x.plus, y, width.plus)
    down = [
        board.box(x.encode, y, width.encode, high, "encode", "codec"),
        board.box(x.exchange, y, width.exchange, high, "exchange\nof bytes", "network"),
        board.box(x.decode, y, width.decode, high, "decode,\nfp32 sum", "codec"),
    ]
    if x.mean is None or width.mean is None:
        ends = [board.box(x.out, y, width.out, high, "mean:\n[n / W]", "memory")]
    else:
        mean = board.box(x.mean, y, width.mean, high, "mean\n(FSDP2)", "compute")
        ends = [mean, board.box(x.out, y, width.out, high, "own shard\n[n / W]", "memory")]
    board.chain([rows, plus, *down, *ends])

    # what the codec left out of this step's message goes into the next one's
    encode = down[0]
    residual = board.box(encode.x - 3.8, y - 4.9, 7.0, 3.0, "residual: what\nwas left out", "memory")
    board.arrow(encode.at("bottom", 1.2), (encode.x + 1.2, residual.y), residual.at("right"))
    board.arrow((plus.x, residual.y + 1.5), plus.at("bottom"))
    board.words(encode.x + 1.8, residual.y, "error feedback", ha="left", grey=True)

    left, right = encode.at("left")[0], down[-1].at("right")[0]
    book = board.box((left + right) / 2, ledger, right - left, 2.4, "ledger: bytes by kind, times", "ledger")
    for box in up:
        board.arrow(box.at("bottom"), (box.x, book.at("top")[1]), dotted=True)
    for box in down:
        board.arrow(box.at("top"), (box.x, book.at("bottom")[1]), dotted=True)
