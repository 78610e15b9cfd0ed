"""The report's own sentences, headings and cells in Chinese; labels of figures have `figures.drawing.catalogue`.

A text is looked up by its English; a template's braces stand for whatever the rows put there, which is looked up in
turn, so that a verdict within a sentence is translated, too. What has no entry stays as it is: names from rows, and
advice of rare findings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from analysis.figures.drawing.catalogue import CHINESE as LABELS
from analysis.report.document import (
    Block,
    Document,
    Facts,
    Front,
    Notes,
    Paragraph,
    Picture,
    Section,
    Text,
)
from analysis.report.language.sentences import CELLS, TEMPLATES
from analysis.tables.formats import Table

_HOLE = re.compile(r"\\\{(\w+)\\\}")
_FINDING = re.compile(r"(?s)(.*?): (.*)\. (.*?) \[(\w+)\](?: Likewise: (.*))?")


_NAMED = re.compile(r"([\w ]+) \((.*)\)")  # a check and the arms that it is about
_KINDS = {"error": "错误", "warning": "警告", "note": "注"}


def say(text: str, language: str) -> str:
    """``text`` in ``language`` ("en" or "zh"); as it is where the catalogue has nothing for it."""
    return text if language != "zh" else _chinese(text)


def translated(document: Document, language: str) -> Document:
    """The whole document in ``language``."""
    if language != "zh":
        return document
    sections = [
        Section(section.anchor, _chinese(section.title), [_block(block) for block in section.blocks])
        for section in document.sections
    ]
    return Document(_chinese(document.title), sections, "zh")


def _block(block: Block) -> Block:
    match block:
        case Text():
            return Text(_chinese(block.text))
        case Paragraph():
            return Paragraph([_chinese(sentence) for sentence in block.sentences], "")
        case Facts():
            return Facts(
                [(_chinese(name), "无" if value == "none" else _chinese(value)) for name, value in block.facts]
            )
        case Notes():
            return Notes([(kind, _note(text)) for kind, text in block.notes], _KINDS)
        case Table():
            return table(block)
        case Picture() | Front():
            return replace(block, title=_chinese(block.title), about=_chinese(block.about))
        case _:
            return block


def table(block: Table) -> Table:
    """The table with heading, heads, note and cells in Chinese; a row's first cell is a name and stays."""
    rows = [[row[0], *map(_cell, row[1:])] for row in block.rows]
    heads = [_chinese(head) for head in block.heads]
    return Table(_chinese(block.title), heads, rows, _chinese(block.note), block.left)


def _note(text: str) -> str:
    """A finding (`report.contents` writes it so), or another note."""
    found = _FINDING.fullmatch(text)
    if found is None:
        return _chinese(text)
    subject, what, advice, check, others = found.groups()
    more = "" if others is None else f"同样：{_chinese(others)}。"
    return f"{_chinese(subject)}：{_chinese(what)}。{_chinese(advice)}。[{check}] {more}".rstrip()


def _cell(text: str) -> str:
    return CELLS[text] if text in CELLS else text if text[:1] in "-+0123456789∞" else _chinese(text)


@cache
def _chinese(text: str) -> str:
    whole = TEMPLATES.get(text) or CELLS.get(text) or LABELS.get(text)
    if whole is not None:
        return whole
    for pattern, template in _patterns():
        found = pattern.fullmatch(text)
        if found:
            return template.format(**{name: _chinese(part) for name, part in found.groupdict().items()})
    if "; " in text:
        return "；".join(map(_chinese, text.split("; ")))
    named = _NAMED.fullmatch(text)
    return f"{CELLS[named[1]]}（{_chinese(named[2])}）" if named and named[1] in CELLS else text


@cache
def _patterns() -> Sequence[tuple[re.Pattern[str], str]]:
    """The templates with holes as patterns: the one with most words of its own is asked first."""
    holed = sorted((english for english in TEMPLATES if "{" in english), key=lambda english: -len(_own(english)))
    return [(re.compile(_pattern(english), re.DOTALL), TEMPLATES[english]) for english in holed]


def _own(english: str) -> str:
    return re.sub(r"\{\w+\}", "", english)


def _pattern(english: str) -> str:
    return _HOLE.sub(r"(?P<\1>.+?)", re.escape(english))
