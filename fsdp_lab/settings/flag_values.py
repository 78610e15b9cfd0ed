"""What flags of programs take beside text: numbers with limits, and paths that must be there, or that can be written.

Each function makes a ``type`` for argparse; `fsdp_lab.settings.flags.Parser` shows the message of its ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

N = TypeVar("N", int, float)


def whole(at_least: int | None = None, at_most: int | None = None) -> Callable[[str], int]:
    """A whole number between two limits, both included; None is no limit."""

    def read(text: str) -> int:
        value = _parsed(int, text)
        if value is None or _outside(value, at_least, at_most):
            raise ValueError(f"wants a whole number{_limits(at_least, at_most)}")
        return value

    return read


def real(at_least: float | None = None, above: float | None = None) -> Callable[[str], float]:
    """A finite number; ``at_least`` may be reached, ``above`` must be passed."""

    def read(text: str) -> float:
        value = _parsed(float, text)
        too_low = value is not None and above is not None and value <= above
        if value is None or not math.isfinite(value) or _outside(value, at_least, None) or too_low:
            raise ValueError(f"wants a number{_limits(at_least, None)}{'' if above is None else f', above {above:g}'}")
        return value

    return read


def new_file(*endings: str) -> Callable[[str], Path]:
    """A file that can be written: no folder, in a folder that exists, with one of ``endings`` (none: any).

    A file that is there is taken, too: whether it may be replaced is for the program to say."""

    def read(text: str) -> Path:
        path = Path(text)
        if endings and path.suffix not in endings:
            raise ValueError(f"wants a file that ends in {' or '.join(endings)}")
        if not text or path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError("wants a file in a folder that exists")
        return path

    return read


def a_file(text: str) -> Path:
    """The path of a file that exists. ValueError says why it is none."""
    path = Path(text)
    if not path.is_file():
        raise ValueError(f"wants a file; {'that is a folder' if path.is_dir() else 'there is none of that name'}")
    return path


def a_folder(text: str) -> Path:
    """The path of a folder that exists. ValueError says why it is none."""
    path = Path(text)
    if not path.is_dir():
        raise ValueError(f"wants a folder; {'that is a file' if path.is_file() else 'there is none of that name'}")
    return path


def new_folder(text: str) -> Path:
    """A folder that is there, or that can be made: no file, and in no file."""
    path = Path(text)
    above = next((part for part in (path, *path.absolute().parents) if part.exists()), path)
    if not text or not above.is_dir():
        raise ValueError(f"wants a folder, there or to be made; {above} is a file")
    return path


def _parsed(kind: Callable[[str], N], text: str) -> N | None:
    try:
        return kind(text)
    except ValueError:
        return None


def _outside(value: float, at_least: float | None, at_most: float | None) -> bool:
    return (at_least is not None and value < at_least) or (at_most is not None and value > at_most)


def _limits(at_least: float | None, at_most: float | None) -> str:
    low = "" if at_least is None else f", at least {at_least:g}"
    return low + ("" if at_most is None else f", at most {at_most:g}")
