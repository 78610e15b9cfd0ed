"""One case: what is made, which of our commands meets it, and what is promised."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Make = Callable[[Path], Sequence[str]]
"""Makes the files of a case in an empty folder; the words of the command after ``python -m``."""


@dataclass(frozen=True)
class Case:
    """One case, with what is promised of the command.

    ``says`` is a regular expression that the output must match, and ``code`` the exit code: 2, or 0 where the bad part
    is left out and counted. ``never`` are files of the case's folder that must not exist afterwards. ``memory_mb`` is
    the limit of its address space; libraries alone map about a gigabyte with torch. ``seconds`` is the most it may
    take, on a machine that does other things, too."""

    area: str
    name: str
    make: Make
    says: str
    code: int = 2
    never: tuple[str, ...] = ()
    memory_mb: int = 6000
    seconds: float = 240


@dataclass(frozen=True)
class Seen:
    """What one case did. ``code`` is None when it had to be stopped; ``line`` is the line that matched, or the last
    one."""

    area: str
    name: str
    promised: int
    code: int | None
    line: str
    peak_mb: int
    broken: tuple[str, ...]

    @property
    def kept(self) -> bool:
        """Was everything as the case promises?"""
        return not self.broken


def judged(case: Case, folder: Path, code: int | None, output: str, peak_mb: int) -> Seen:
    """Compare what a case did with what is promised."""
    broken = []
    if code is None:
        broken.append(f"not finished after {case.seconds:.0f} s")
    elif code != case.code:
        broken.append(f"exit code {code}, promised {case.code}")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    matching = [line for line in lines if re.search(case.says, line)]
    if not matching:
        broken.append(f"says nothing like {case.says!r}")
    if "Traceback (most recent call last)" in output:
        broken.append("a traceback")
    broken += [f"{name} exists" for name in case.never if (folder / name).exists()]
    line = (matching or lines or [""])[0 if matching else -1]
    return Seen(case.area, case.name, case.code, code, _short(line.replace(str(folder), ".")), peak_mb, tuple(broken))


def _short(text: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable if len(printable) <= 240 else f"{printable[:237]}..."
