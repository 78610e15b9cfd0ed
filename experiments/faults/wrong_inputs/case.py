"""One mistake: the command line, the files it finds, and what the message must say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Make = Callable[[Path], None]
"""Makes the files of a case in an empty folder, in which the command then runs."""


def nothing(folder: Path) -> None:
    """Make no files: the command finds an empty folder."""


@dataclass(frozen=True)
class Case:
    """One mistake. ``words``: what is typed after ``fsdp-lab`` and the ``command``.

    ``key`` is the flag, file or setting that is wrong, ``given`` what was given for it, ``allowed`` what could have
    been given, or what to do instead: the message must have all three, as parts of its text."""

    command: str
    mistake: str
    words: tuple[str, ...]
    key: str
    given: str
    allowed: str
    make: Make = nothing


@dataclass(frozen=True)
class Seen:
    """How a command answered: its exit code (None: it had to be stopped), and what it wrote on stderr and stdout.

    ``changed`` are files of the case's folder that are new, gone or different afterwards."""

    case: Case
    code: int | None
    message: str
    output: str
    changed: tuple[str, ...]

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept; none when all were."""
        case = self.case
        reasons = [] if self.code == 2 else [f"exit code {self.code}, not 2"]
        first, *further = self.message.splitlines() or [""]
        if not first or any(line.strip() and not line.startswith(" ") for line in further):
            reasons.append("not one message")
        if self.output:
            reasons.append(f"writes {self.output[:60]!r} on stdout")
        if "Traceback (most recent call last)" in self.message:
            reasons.append("a traceback")
        words = " ".join(self.message.split())
        reasons += [f"does not say {part!r}" for part in (case.key, case.given, case.allowed) if part not in words]
        return reasons + [f"{name} is not what it was" for name in self.changed]


def table(seen: Sequence[Seen], made_by: str) -> str:
    """The cases in Markdown, those that broke a promise first."""
    broken = sum(bool(one.broken) for one in seen)
    lines = [
        "# Wrong inputs",
        "",
        f"Made by `{made_by}`: {len(seen)} mistakes, {broken} promises broken. Promised: exit code 2, one message that "
        "names what is wrong, what was given and what is allowed, no traceback, nothing on standard output, and no "
        "file made, changed or lost. Hostile files and flags are another table, hostile.md.",
        "",
        "| command | mistake | what it says | promise |",
        "|---|---|---|---|",
    ]
    for one in sorted(seen, key=lambda one: not one.broken):
        promise = _cell("; ".join(one.broken)) if one.broken else "kept"
        lines.append(f"| {one.case.command} | {one.case.mistake} | {_cell(one.message)} | {promise} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    shown = " ".join(text.split()).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
    return shown if len(shown) <= 400 else f"{shown[:397]}..."
