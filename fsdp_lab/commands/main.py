"""The command ``fsdp-lab``: finds the module that a word stands for, and runs it as ``python -m`` would.

Nothing heavy is imported before the module itself is, so that help, versions and tables come at once. Modules of
experiments/ and analysis/ are found by name in the checkout that this package lies in; a wheel does not have them.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from fsdp_lab.commands.help import family_help, full_help, nearest
from fsdp_lab.commands.settings_first import read_first
from fsdp_lab.commands.table import COMMANDS, FAMILIES, Command, below, typed
from fsdp_lab.extras import advice
from fsdp_lab.moved import MOVED
from fsdp_lab.settings.flags import commands_are_typed
from fsdp_lab.settings.user_errors import unix_endings

ROOT = Path(__file__).resolve().parents[2]
"""Where fsdp_lab lies: the checkout, or site-packages."""

IN_THE_WHEEL = ("comm_compress", "fsdp_lab")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``fsdp-lab WORDS...``; returns the exit code, 2 for a word that is no command."""
    with unix_endings():
        return _run(list(sys.argv[1:] if argv is None else argv))


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(full_help())
        return 0 if words else 2
    if words[0] == "--version":
        import comm_compress as cc  # without torch, as long as nothing else is asked of it

        print(f"fsdp-lab {cc.__version__}")
        return 0
    command, rest = found(words)
    if command is None or _is_misspelled(command, rest):
        return _no_command(words)
    return run(command, rest)


def found(words: Sequence[str]) -> tuple[Command | None, list[str]]:
    """The command that ``words`` begin with, of two words before one, and the words after its own.

    Dashes and underscores are alike. A module's name does as well, today's or one that it had before it moved.
    """
    for number in (2, 1):
        spelled = folded(" ".join(words[:number]))
        for command in COMMANDS:
            if len(words) >= number and folded(command.words) == spelled:
                return command, list(words[number:])
    old = next((old for old in MOVED if words[0] in (old, _of_a_flat_package(old))), words[0])
    for command in COMMANDS:
        if command.module == MOVED.get(old, old):
            return command, list(words[1:])
    return None, []


def _of_a_flat_package(module: str) -> str:
    """The name of a module that lay in no folder, by which it was known; else the whole name."""
    return module.rpartition(".")[2] if module.count(".") == 1 else module


def _is_misspelled(command: Command, rest: Sequence[str]) -> bool:
    """Is the word after a command, which is no file, much like the second word of another: ``links calibrat``?"""
    if not rest or rest[0].startswith("-") or Path(rest[0]).exists():
        return False
    return bool(nearest(f"{command.words} {folded(rest[0])}", [longer.words for longer in below(command.words)]))


def folded(word: str) -> str:
    """``word`` as it is compared: ``update_error`` is ``update-error``."""
    return word.replace("_", "-")


def run(command: Command, rest: Sequence[str]) -> int:
    """Run a command's module with ``rest`` as its command line, in this process; returns or raises its exit code."""
    package = command.module.partition(".")[0]
    if package not in IN_THE_WHEEL:
        if not (ROOT / package / "__init__.py").exists():
            print(_of_a_checkout(command), file=sys.stderr)
            return 2
        _make_importable(ROOT)
    commands_are_typed(typed())
    read_first(command.module, rest)
    sys.argv[1:] = rest
    try:
        runpy.run_module(command.module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        message = advice(error)
        if message is None:
            raise
        print(message, file=sys.stderr)
        return 2
    return 0


def _make_importable(root: Path) -> None:
    """Put the checkout on the path of this process and of those that it starts."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(root) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, paths)])


def _of_a_checkout(command: Command) -> str:
    return (
        f"fsdp-lab {command.words} is a command of a checkout ({command.module}), which this installation is not: get "
        "the source (git clone, or the unpacked sdist), and there: pip install -e '.[lab,analysis]'"
    )


def _no_command(words: Sequence[str]) -> int:
    """Say what is there for a first word of several commands, or what is near to an unknown one."""
    first = folded(words[0])
    if first in FAMILIES and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(family_help(first), file=sys.stderr if len(words) == 1 else sys.stdout)
        return 2 if len(words) == 1 else 0
    several = bool(below(first))
    said = " ".join(words[: 2 if several else 1])
    known = [command.words for command in (below(first) if several else COMMANDS)]
    hint = nearest(folded(said), [*known, *FAMILIES])
    print(f"fsdp-lab: {said}: no such command{hint}; fsdp-lab --help lists all", file=sys.stderr)
    return 2
