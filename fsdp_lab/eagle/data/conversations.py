"""Conversations from JSON lines: ShareGPT's shape or OpenAI's; what cannot be used is named and counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from fsdp_lab.settings.reading.strict import short

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "system": "system",
}
_SHOWN = 3  # places named for each reason
_REASONS = 50  # told apart; a stranger's file may have as many as lines
_OTHER = "other reasons"
_LONGEST = 1 << 22  # characters of a line: a tokenizer takes some hundred bytes for each
_MOST_TURNS = 1000  # a chat template is rendered for each answer


@dataclass(frozen=True)
class Conversation:
    """``messages``: {"role": system, user or assistant, "content": text}, as chat templates take them."""

    name: str
    messages: list[dict[str, str]]


@dataclass
class Skipped:
    """What was left out of ``file``, by reason: how often, and the first few places."""

    file: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, place: str) -> None:
        """One more."""
        if reason not in self.counts and len(self.counts) >= _REASONS:
            reason = _OTHER
        self.counts[reason] += 1
        places = self.places.setdefault(reason, [])
        if len(places) < _SHOWN:
            places.append(place)

    @property
    def total(self) -> int:
        """All of them."""
        return self.counts.total()

    def lines(self) -> Iterator[str]:
        """``3 skipped of chats.jsonl: broken JSON (line 2, line 7, line 9)``, the most frequent first."""
        of = f" of {self.file}" if self.file else ""
        for reason, count in self.counts.most_common():
            more = ", ..." if count > _SHOWN else ""
            yield f"{count} skipped{of}: {reason} ({', '.join(self.places[reason])}{more})"


class UnusableError(Exception):
    """Why one conversation cannot be used."""


def read_conversations(path: Path, skipped: Skipped, answered: bool = True) -> Iterator[Conversation]:
    """Every usable conversation of a JSON lines file; the others go to ``skipped``. ValueError: no such file.

    ``answered``: leave out those in which the assistant says nothing.
    """
    skipped.file = path.name
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(_bounded(lines), 1):
                if not line.strip():
                    continue
                try:
                    yield _parsed(line, number, answered)
                except UnusableError as reason:
                    skipped.add(str(reason), f"line {number}")
    except OSError as error:
        raise ValueError(f"data_path: cannot read {path} ({error.strerror})") from None


def _bounded(file: TextIO) -> Iterator[str]:
    """The lines of ``file``; of one that is too long its beginning, which is too long, too."""
    while line := file.readline(_LONGEST + 1):
        rest = line
        while len(rest) > _LONGEST and not rest.endswith("\n"):
            rest = file.readline(_LONGEST + 1)
        yield line


def _parsed(line: str, number: int, answered: bool) -> Conversation:
    if len(line) > _LONGEST:
        raise UnusableError(f"more than {_LONGEST:,} characters")
    try:
        record = json.loads(line)
    except ValueError:
        raise UnusableError("broken JSON") from None
    except RecursionError:
        raise UnusableError("nested too deeply") from None
    if not isinstance(record, dict):
        raise UnusableError("not a JSON object")
    turns = record.get("conversations", record.get("messages"))
    if not isinstance(turns, list) or not turns:
        raise UnusableError("no conversations or messages")
    if len(turns) > _MOST_TURNS:
        raise UnusableError(f"more than {_MOST_TURNS:,} turns")
    messages = [_message(turn) for turn in turns]
    roles = [message["role"] for message in messages]
    if answered and "assistant" not in roles:
        raise UnusableError("nothing said by the assistant")
    spoken = roles[1:] if roles[0] == "system" else roles
    if "system" in spoken or spoken != ["user", "assistant"] * (len(spoken) // 2) + ["user"] * (len(spoken) % 2):
        raise UnusableError("user and assistant do not take turns, user first")
    return Conversation(_name(record.get("id")) or f"line {number}", messages)


def _name(given: Any) -> str | None:
    """An id that can be printed in a line; None where it is no such thing."""
    name = str(given) if type(given) in (str, int) else ""
    return name if 0 < len(name) <= 100 and name.isprintable() else None


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _message(turn: Any) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise UnusableError("a turn is not a JSON object")
    role, content = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(role, str):
        raise UnusableError("a role that is not a text")
    if role not in _ROLES:
        raise UnusableError(f"unknown role {short(ascii(role), 40)}")
    if not isinstance(content, str) or not content.strip():
        raise UnusableError("a turn without text")
    if not _is_unicode(content):
        raise UnusableError("a turn that is no Unicode text (half of a surrogate pair)")
    return {"role": _ROLES[role], "content": content}
