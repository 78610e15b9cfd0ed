"""Texts that somebody else wrote, as Markdown and HTML show them: letter by letter, never as markup.

Names of runs, arms, models and data, and messages of errors, come from rows, and rows from anybody.
"""

from __future__ import annotations

import html
import re

from fsdp_lab.settings.user_errors import printable

# what CommonMark and GitHub (tables, mathematics, strikethrough) may take for markup, wherever it stands
_ANYWHERE = re.compile(r"[\\`*<|~$]|&(?=[#\w])|_(?!(?<=\w_)\w)|\](?=[(\[:])")
# and at the beginning of a block: headings, lists, quotes, rules, definitions of links
_AT_THE_BEGINNING = re.compile(r"^(\s*)(?:([#>+=\[-])|(\d+)([.)]))")


def inline(text: str) -> str:
    """The text as Markdown within a line: after other words, in a heading, in a table's cell."""
    return _ANYWHERE.sub(lambda match: "\\" + match[0], printable(text))


def block(text: str) -> str:
    """The text as Markdown that begins a paragraph or an entry of a list."""
    return _AT_THE_BEGINNING.sub(_not_a_block, inline(text))


def page(text: str) -> str:
    """The text as text or an attribute of HTML."""
    return html.escape(printable(text))


def slug(text: str) -> str:
    """The text as a part of an address or of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _not_a_block(match: re.Match[str]) -> str:
    spaces, sign, number, dot = match.groups()
    return f"{spaces}\\{sign}" if sign else f"{spaces}{number}\\{dot}"
