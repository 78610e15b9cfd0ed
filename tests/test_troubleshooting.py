"""Every message that the troubleshooting page quotes is one that the code can print."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [path for path in ("docs/troubleshooting.md", "docs/zh/troubleshooting.md") if (ROOT / path).exists()]
QUOTED = re.compile(r"(?m)^\*\*`(.+)`\*\*$")
GAP = "..."
"""What stands in a quoted message for a part that differs from case to case."""


def quoted(page: str) -> list[str]:
    return QUOTED.findall((ROOT / page).read_text(encoding="utf-8"))


def literals(tree: ast.AST) -> Iterator[str]:
    """Every string of a program, with GAP where an f-string has a value."""
    parts: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else GAP for v in node.values)
            yield text.replace(GAP + GAP, GAP)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.value


@cache
def said() -> str:
    """All strings of the code, a line each."""
    files = (file for package in ("comm_compress", "fsdp_lab", "experiments", "analysis") for file in sources(package))
    return "\n".join(text.strip() for file in files for text in literals(ast.parse(file.read_text(encoding="utf-8"))))


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("page", PAGES)
def test_every_quoted_message_is_in_the_code(page: str) -> None:
    messages = quoted(page)
    assert len(messages) >= 25
    assert [message for message in messages if message not in said()] == []


@pytest.mark.parametrize("page", PAGES[1:])
def test_a_translation_quotes_the_same_messages(page: str) -> None:
    assert quoted(page) == quoted(PAGES[0])


def test_a_message_that_was_reworded_is_noticed() -> None:
    (program,) = literals(ast.parse("print(f'unit {name!r} is ' 'replicated')"))
    assert program == "unit ... is replicated"
    assert quoted(PAGES[0])[0].replace("no such command", "not a command") not in said()
