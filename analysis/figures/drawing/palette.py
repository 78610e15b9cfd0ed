"""Each method's colour and marker, the same in every figure.

Hues are Okabe and Ito's (Color Universal Design, 2008), one for each kind of method; methods of a kind differ in shade
and marker. Any two methods differ in marker, or in colour by at least 20 (CIE 1976) whatever the reader's colour
vision; tests/analysis/figures/drawing/test_palette.py holds this with simulated vision.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Look:
    """How a family is drawn: ``colour`` as #rrggbb, ``marker`` by matplotlib's name."""

    colour: str
    marker: str


LOOKS: Final[dict[str, Look]] = {
    # what compression is measured against: black and greys
    "none": Look("#000000", "o"),
    "identity": Look("#595959", "d"),
    "bf16": Look("#8C8C8C", "s"),
    "fp16": Look("#A6A6A6", "D"),
    # codes with a scale a block: blue
    "fp8": Look("#00406B", "^"),
    "int8": Look("#0072B2", "s"),
    "int4": Look("#56B4E9", "D"),
    "uniform": Look("#1F4FC4", "h"),
    "ecsq": Look("#0A1172", "*"),
    "binned": Look("#2B8CBE", "p"),
    "taco": Look("#4A7FB5", "v"),
    "tahquant": Look("#003D9E", "X"),
    # unbiased rounding: green
    "qsgd": Look("#009E73", "o"),
    "nc": Look("#5FC9A5", "v"),
    "terngrad": Look("#005C43", "P"),
    # signs: purple
    "onebit": Look("#CC79A7", "X"),
    "signsgd": Look("#8C3B6B", "p"),
    # few elements: vermillion
    "topk": Look("#D55E00", "^"),
    "randomk": Look("#FF9A57", "<"),
    "thresholdv": Look("#8F3F00", ">"),
    "dgc": Look("#B2182B", "v"),
    # projections: orange and yellow
    "powersgd": Look("#E69F00", "o"),
    "lowrank": Look("#FF7F50", "P"),
    "sketch": Look("#D6C000", "*"),
    "gradiveq": Look("#8A6100", "h"),
    # changes of parameters; the control
    "delta": Look("#6A5ACD", "H"),
    "zero": Look("#C4C4C4", "x"),
    # on the chart: optimizers, and kinds of local steps
    "muon": Look("#6B4423", "D"),
    "demo": Look("#D81B60", "<"),
    "dion": Look("#F08CB4", "H"),
    "onebit_adam": Look("#5C1A46", "H"),
    "zero_one_adam": Look("#B5179E", ">"),
    "ef21_muon": Look("#A0795A", "*"),
    "diloco": Look("#7A8B00", "8"),
    "local_sgd": Look("#C5CF6A", "d"),
}

# for methods of plugins: violet, by name, so that one method looks the same in every figure
_OTHER_COLOUR = "#7B4FA3"
_OTHER_MARKERS = ("8", "*", "P", "D", "<", ">")


def look(family: str) -> Look:
    """The look of a family (a method's name; "int4 + delta" looks like its gradients' method)."""
    method = family.split()[0] if family.split() else family
    if method in LOOKS:
        return LOOKS[method]
    return Look(_OTHER_COLOUR, _OTHER_MARKERS[zlib.crc32(method.encode()) % len(_OTHER_MARKERS)])


def shade(colour: str, amount: float) -> str:
    """The colour moved towards black (``amount`` from 0 to -1) or white (0 to 1)."""
    target = 255 if amount > 0 else 0
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (target - c) * abs(amount)):02X}" for c in channels)
