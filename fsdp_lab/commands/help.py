"""What ``fsdp-lab --help`` and ``fsdp-lab bench --help`` say, and which word is near to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from fsdp_lab.commands.table import COMMANDS, FAMILIES, GROUPS, below

_USAGE = """usage: fsdp-lab COMMAND [--help] ...
       fsdp-lab --version

Compressed communication for FSDP2: training, comparisons, measurements. What each command takes, it says
itself: fsdp-lab COMMAND --help. Dashes and underscores are alike, in commands as in flags."""
_WIDTH = 13


def full_help() -> str:
    """All first words, by what one wants to do; those of several commands with the second words."""
    return "\n\n".join([_USAGE, *(f"{group}:\n" + "\n".join(_lines(group)) for group in GROUPS)])


def family_help(word: str) -> str:
    """All commands of two words that begin with ``word``."""
    lines = [f"  {command.words:{_WIDTH + 9}} {command.text}" for command in below(word)]
    return "\n".join([f"usage: fsdp-lab {word} COMMAND [--help] ...", "", f"{FAMILIES[word].capitalize()}:", *lines])


def _lines(group: str) -> list[str]:
    lines: dict[str, str] = {}
    for command in COMMANDS:
        first, _, second = command.words.partition(" ")
        if command.group == group and not second:
            lines[first] = f"  {first:{_WIDTH}} {command.text}"
        elif command.group == group and first in FAMILIES:
            lines[first] = f"  {first:{_WIDTH}} {FAMILIES[first]}"
    return [_with_second_words(first, line) for first, line in lines.items()]


def _with_second_words(first: str, line: str) -> str:
    seconds = " | ".join(command.words.partition(" ")[2] for command in below(first))
    return f"{line}\n  {'':{_WIDTH}}   {first} {seconds}" if seconds else line


def nearest(word: str, known: Sequence[str]) -> str:
    """``; did you mean fsdp-lab report?``, or an empty text where nothing known is like ``word``."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f"; did you mean fsdp-lab {close[0]}?" if close else ""
