"""Conversations from JSON lines (also .gz), in ShareGPT's or OpenAI's format; unusable ones are counted and named."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_lab.data.reading.byte_stream import ByteStream
from fsdp_lab.settings.reading.strict import short

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "system": "system",
}
_SHOWN = 3  # conversations named for each reason
_REASONS = 50  # counted separately; a stranger's file may have a new one in each line
_OTHER = "other reasons"
_LONGEST = 1 << 22  # bytes of a line: a tokenizer takes some hundred bytes for each
_MOST_TURNS = 1000  # a chat template is rendered for each answer


@dataclass(frozen=True)
class Conversation:
    """One conversation; its messages are {"role": system, user or assistant, "content": text}, as in chat templates."""

    name: str
    messages: list[dict[str, str]]


@dataclass
class Skipped:
    """The conversations of ``file`` that were left out: for each reason how many, and the names of the first few."""

    file: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Counts the conversation ``name``, which is left out for ``reason``."""
        if reason not in self.counts and len(self.counts) >= _REASONS:
            reason = _OTHER
        self.counts[reason] += 1
        names = self.names.setdefault(reason, [])
        if len(names) < _SHOWN:
            names.append(name)

    @property
    def total(self) -> int:
        """How many conversations were left out, for all reasons together."""
        return self.counts.total()

    def lines(self) -> Iterator[str]:
        """Yields ``3 skipped of chats.jsonl: broken JSON (line 2, line 7, line 9)``, the most frequent reason first."""
        of = f" of {self.file}" if self.file else ""
        for reason, count in self.counts.most_common():
            more = ", ..." if count > _SHOWN else ""
            yield f"{count} skipped{of}: {reason} ({', '.join(self.names[reason])}{more})"


class UnusableError(Exception):
    """The reason why one conversation cannot be used."""


def read_conversations(path: Path, skipped: Skipped, answered: bool = True) -> Iterator[Conversation]:
    """Every usable conversation of a JSON-lines file, also .gz; ``skipped`` counts the others.

    ``answered``: conversations in which the assistant says nothing are not usable. DataError: the file is not there or
    cannot be read.
    """
    skipped.file = path.name
    with ByteStream(path) as stream:
        for number, line in enumerate(_bounded(stream), 1):
            if not line.strip():
                continue
            try:
                yield _parsed(line, number, answered)
            except UnusableError as reason:
                skipped.add(str(reason), f"line {number}")


def _bounded(stream: ByteStream) -> Iterator[bytes]:
    """The lines of ``stream``; a line that is too long is cut, but stays too long, so that it is refused."""
    while line := stream.readline(_LONGEST + 1):
        rest = line
        while len(rest) > _LONGEST and not rest.endswith(b"\n"):
            rest = stream.readline(_LONGEST + 1)
        yield line


def _parsed(line: bytes, number: int, answered: bool) -> Conversation:
    if len(line) > _LONGEST:
        raise UnusableError(f"more than {_LONGEST:,} bytes")
    try:
        record = json.loads(line.decode(errors="replace"))
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
    """The id ``given``, if it is short and printable; else None."""
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
