"""What a report says, before it is HTML or Markdown: sections of a few kinds of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.tables.formats import Table


@dataclass(frozen=True)
class Text:
    """One paragraph of plain sentences, without markup."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names and what they stand for, such as the plan of a comparison."""

    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Notes:
    """Findings or complaints. A kind is error, warning or note; ``shown`` says what to call it, by default so."""

    notes: Sequence[tuple[str, str]]  # kind, text
    shown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """Text that the reader can type into a shell."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A figure that has been written as ``name`` with an ending for each format."""

    name: str
    title: str
    about: str


@dataclass(frozen=True)
class Paragraph:
    """Sentences that a translation takes one by one; what is most important comes first. ``between`` joins them."""

    sentences: Sequence[str]
    between: str = " "

    @property
    def text(self) -> str:
        """The paragraph as one text."""
        return self.between.join(self.sentences)


@dataclass(frozen=True)
class Front:
    """The first figure as SVG, for a screen (``wide``) and for a phone. ``name`` is that of the wide one's file.

    Both are written by `analysis.report.opening.front`, which escapes the names in them."""

    name: str
    wide: str
    narrow: str
    title: str
    about: str


Block = Text | Paragraph | Facts | Notes | Command | Table | Picture | Front


@dataclass(frozen=True)
class Section:
    """A part of the report. ``anchor`` is its address within the page."""

    anchor: str
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


@dataclass(frozen=True)
class Document:
    """A whole report. ``language`` is HTML's code for it (en, zh)."""

    title: str
    sections: Sequence[Section]
    language: str = "en"
