"""Conversations from JSON lines: ShareGPT's shape or OpenAI's; what cannot be used is named and counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "system": "system",
}
_SHOWN = 3  # places named for each reason


@dataclass(frozen=True)
class Conversation:
    """``messages``: {"role": system, user or assistant, "content": text}, as chat templates take them."""

    name: str
    messages: list[dict[str, str]]


@dataclass
class Skipped:
    """What was left out, by reason: how often, and the first few places."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, place: str) -> None:
        """One more."""
        self.counts[reason] += 1
        places = self.places.setdefault(reason, [])
        if len(places) < _SHOWN:
            places.append(place)

    @property
    def total(self) -> int:
        """All of them."""
        return self.counts.total()

    def lines(self) -> Iterator[str]:
        """``3 skipped: broken JSON (line 2, line 7, line 9)``, the most frequent first."""
        for reason, count in self.counts.most_common():
            more = ", ..." if count > _SHOWN else ""
            yield f"{count} skipped: {reason} ({', '.join(self.places[reason])}{more})"


class UnusableError(Exception):
    """Why one conversation cannot be used."""


def read_conversations(path: Path, skipped: Skipped, answered: bool = True) -> Iterator[Conversation]:
    """Every usable conversation of a JSON lines file; the others go to ``skipped``. ValueError: no such file.

    ``answered``: leave out those in which the assistant says nothing.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    yield _parsed(line, number, answered)
                except UnusableError as reason:
                    skipped.add(str(reason), f"line {number}")
    except OSError as error:
        raise ValueError(f"data_path: cannot read {path} ({error.strerror})") from None


def _parsed(line: str, number: int, answered: bool) -> Conversation:
    try:
        record = json.loads(line)
    except ValueError:
        raise UnusableError("broken JSON") from None
    if not isinstance(record, dict):
        raise UnusableError("not a JSON object")
    turns = record.get("conversations", record.get("messages"))
    if not isinstance(turns, list) or not turns:
        raise UnusableError("no conversations or messages")
    messages = [_message(turn) for turn in turns]
    roles = [message["role"] for message in messages]
    if answered and "assistant" not in roles:
        raise UnusableError("nothing said by the assistant")
    spoken = roles[1:] if roles[0] == "system" else roles
    if "system" in spoken or spoken != ["user", "assistant"] * (len(spoken) // 2) + ["user"] * (len(spoken) % 2):
        raise UnusableError("user and assistant do not take turns, user first")
    return Conversation(str(record.get("id", f"line {number}")), messages)


def _message(turn: Any) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise UnusableError("a turn is not a JSON object")
    role, content = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if role not in _ROLES:
        raise UnusableError(f"unknown role {role!r}")
    if not isinstance(content, str) or not content.strip():
        raise UnusableError("a turn without text")
    return {"role": _ROLES[role], "content": content}
