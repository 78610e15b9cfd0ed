"""The command lines of all programs: argparse, where ``--dry-run`` and ``--dry_run`` are the same flag."""

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` that takes dashes for underscores, and suggests a flag for a misspelled one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses as argparse does, after `with_known_dashes` has put the known spelling in place."""
        words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(with_known_dashes(words, self._option_string_actions), namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses as argparse does; an unknown flag ends the program with exit code 2 and a suggestion."""
        options, extras = self.parse_known_args(args, namespace)
        if extras:
            self.error(
                "; ".join(f"{word}: no such flag{closest(word, self._option_string_actions)}" for word in extras)
            )
        return options


def program(module: str, text: str | None, **options: Any) -> Parser:
    """The parser of ``python -m module``. ``text`` is its docstring; ``options`` go to argparse.

    Lines such as ``python -m module FILE`` in them are shown as the user would type them (`as_typed`).
    """
    form = argparse.RawDescriptionHelpFormatter
    options = {name: as_typed(value) if isinstance(value, str) else value for name, value in options.items()}
    prog = as_typed(f"python -m {module}")
    return Parser(prog=prog, description=as_typed(text or "") or None, formatter_class=form, **options)


_TYPED: dict[str, str] = {}


def commands_are_typed(lines: Mapping[str, str]) -> None:
    """From now on, help texts of this process name a module as in ``lines``: ``{"a.b": "tool b"}``."""
    _TYPED.update(lines)


def as_typed(text: str) -> str:
    """``text`` in which every ``python -m MODULE`` is as `commands_are_typed` was told, where it was told of it."""
    return re.sub(r"python -m (\w+(?:\.\w+)*)", lambda found: _TYPED.get(found[1], found[0]), text)


def with_known_dashes(words: Sequence[str], known: Iterable[str]) -> list[str]:
    """``words`` in which every flag is spelled as in ``known``, with dashes or underscores.

    Words after ``--`` belong to another program and stay unchanged.
    """
    written = {_folded(flag): flag for flag in known}
    split = words.index("--") if "--" in words else len(words)
    return [_as_known(word, written) for word in words[:split]] + list(words[split:])


def closest(word: str, known: Iterable[str]) -> str:
    """``; did you mean --batch_size?``, or an empty text where no known flag is similar to ``word``."""
    flag = word.partition("=")[0]
    close = difflib.get_close_matches(_folded(flag), [f for f in known if f.startswith("--")], n=1)
    return f"; did you mean {close[0]}?" if close and flag.startswith("-") else ""


def _as_known(word: str, written: dict[str, str]) -> str:
    flag, equals, value = word.partition("=")
    return f"{written.get(_folded(flag), flag)}{equals}{value}" if flag.startswith("--") else word


def _folded(flag: str) -> str:
    return flag[:2] + flag[2:].replace("-", "_")
