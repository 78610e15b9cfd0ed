"""Conversations for EAGLE: one hostile line is left out and counted, the others are used."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.faults.hostile.case import Case, Make
from experiments.faults.hostile.tiny_model import TEMPLATE, save_model

_FINE = json.dumps({"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "an answer"}]})


def _turns(*turns: tuple[object, object]) -> str:
    return json.dumps({"conversations": [{"from": who, "value": text} for who, text in turns]})


_LINES = {
    "a list as a role": (_turns((["human"], "x")), "role that is not a text"),
    "an object as a text": (_turns(("human", {}), ("gpt", "x")), "a turn without text"),
    "100,000 brackets": ('{"conversations": ' + "[" * 100_000, "nested too deeply"),
    "half a surrogate pair": ('{"conversations": [{"from": "human", "value": "\\ud800"}]}', "no Unicode text"),
    "a number of 5,000 digits": ('{"id": ' + "9" * 5000 + "}", "broken JSON"),
    "a line of 5 MB": (_turns(("human", "x" * 5_000_000), ("gpt", "y")), "more than 4,194,304 characters"),
    "2,000 turns": (_turns(*[("human", "x"), ("gpt", "y")] * 1000), "more than 1,000 turns"),
    "a role that moves the cursor": (_turns(("\x1b[2J", "x")), r"unknown role '\\x1b\[2J'"),
}


def _show(line: str, template: str = TEMPLATE) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / "chats.jsonl").write_text(f"{_FINE}\n{line}\n{_FINE}\n", encoding="utf-8")
        target = save_model(folder / "target", template)
        return ["fsdp_lab.eagle.data", "show", str(folder / "chats.jsonl"), "--target_dir", str(target)]

    return make


_STUMBLES = "{% if messages[0]['content'] == 'stumble' %}{{ messages[0]['content'] + 1 }}{% endif %}" + TEMPLATE


def _nothing_usable(folder: Path) -> list[str]:
    words = _show("")(folder)
    (folder / "chats.jsonl").write_text("[1]\n{broken\n", encoding="utf-8")
    return list(words)


CASES = [
    *(
        Case("conversations", name, _show(line), f"1 skipped of chats.jsonl: .*{says}.* \\(line 2\\)", code=0)
        for name, (line, says) in _LINES.items()
    ),
    Case(
        "conversations",
        "a text that the chat template stumbles over",
        _show(_turns(("human", "stumble"), ("gpt", "x")), _STUMBLES),
        r"1 skipped of chats.jsonl: the chat template refuses it: TypeError.*\(line 2\)",
        code=0,
    ),
    Case("conversations", "no usable line", _nothing_usable, "no usable conversation"),
]
