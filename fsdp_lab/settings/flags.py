"""The command lines of all programs: argparse, where ``--dry-run`` and ``--dry_run`` are the same flag."""

import argparse
import contextlib
import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from fsdp_lab.settings.user_errors import printable


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
            self.error("; ".join(_strange(extras, self._option_string_actions)))
        return options

    def error(self, message: str) -> NoReturn:
        """End the program with one message, which says where all flags are listed, and exit code 2."""
        text = message.removeprefix("argument ")
        missing = text.removeprefix("the following arguments are required: ")
        text = f"{missing}: missing" if missing != text else text
        self.exit(2, f"{self.prog}: {printable(text)} ({self.prog} --help lists all)\n")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        kind = action.type
        if not callable(kind):
            return super()._get_value(action, arg_string)
        try:
            return kind(arg_string)
        except ValueError as error:
            plain = "wants a whole number" if kind is int else "wants a number" if kind is float else ""
            raise argparse.ArgumentError(action, f"got {arg_string!r}, {plain or error}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        close = difflib.get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise argparse.ArgumentError(action, f"got {value!r}, wants one of {', '.join(known)}{hint}")


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


@contextlib.contextmanager
def as_typed_now() -> Iterator[None]:
    """For a while; then help texts name modules again as they do now."""
    now = dict(_TYPED)
    try:
        yield
    finally:
        _TYPED.clear()
        _TYPED.update(now)


def as_typed(text: str) -> str:
    """``text`` in which every ``python -m MODULE`` is as `commands_are_typed` was told, where it was told of it."""
    return re.sub(r"python -m (\w+(?:\.\w+)*)", lambda match: _TYPED.get(match[1], match[0]), text)


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


def _strange(extras: Sequence[str], known: Iterable[str]) -> list[str]:
    """What is wrong with words that no flag takes; the value of a flag that does not exist is not told apart."""
    told, value_follows = [], False
    for word in extras:
        if word.startswith("-"):
            told.append(f"{word.partition('=')[0]}: no such flag{closest(word, known)}")
        elif not value_follows:
            told.append(f"{word!r}: a word that belongs to no flag")
        value_follows = word.startswith("-") and "=" not in word
    return told


def _as_known(word: str, written: dict[str, str]) -> str:
    flag, equals, value = word.partition("=")
    return f"{written.get(_folded(flag), flag)}{equals}{value}" if flag.startswith("--") else word


def _folded(flag: str) -> str:
    return flag[:2] + flag[2:].replace("-", "_")
