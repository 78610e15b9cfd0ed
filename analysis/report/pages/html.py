"""A report as one HTML page that needs nothing beside it: style, script and figures are inside.

The page forbids itself every request and every script but its own, whatever the rows hold."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from analysis.report.document import (
    Block,
    Command,
    Document,
    Facts,
    Front,
    Notes,
    Paragraph,
    Picture,
    Section,
    Text,
)
from analysis.report.language.chinese import say
from analysis.tables.formats import Table
from analysis.tables.markup import page as escape

MEDIA = {"svg": "image/svg+xml", "png": "image/png"}  # what a browser shows, best first
STYLE = (Path(__file__).parent / "page.css").read_text()
SCRIPT = (Path(__file__).parent / "page.js").read_text()
_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'"


def render(document: Document, folder: Path, formats: Sequence[str]) -> str:
    """The page. Figures are read from ``folder``, where they were written in ``formats``."""
    answer, *rest = document.sections
    contents = "".join(f'<li><a href="#{escape(s.anchor)}">{escape(s.title)}</a></li>' for s in rest)
    first, *others = (_section(section, folder, formats) for section in (answer, *rest))
    body, field = "\n".join(others), say("filter rows", document.language)
    title = escape(document.title)
    return (
        f'<!DOCTYPE html>\n<html lang="{document.language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body data-filter="{escape(field)}">\n<main>\n'
        f"<h1>{title}</h1>\n{first}\n<nav><ol>{contents}</ol></nav>\n{body}\n</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _section(section: Section, folder: Path, formats: Sequence[str]) -> str:
    blocks = "\n".join(_block(block, folder, formats) for block in section.blocks)
    return f'<section id="{escape(section.anchor)}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>'


def _block(block: Block, folder: Path, formats: Sequence[str]) -> str:
    """One block; those with a drawing read it from ``folder``."""
    match block:
        case Text():
            return f"<p>{escape(block.text)}</p>"
        case Paragraph():
            return f'<p class="answer">{escape(block.text)}</p>'
        case Front():
            return _front(block)
        case Facts():
            rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in block.facts)
            return f"<dl>{rows}</dl>"
        case Notes():
            items = "".join(
                f'<li class="{escape(kind)}"><b>{escape(block.shown.get(kind, kind))}</b> {escape(text)}</li>'
                for kind, text in block.notes
            )
            return f'<ul class="notes">{items}</ul>'
        case Command():
            return f"<pre><code>{escape(block.text)}</code></pre>"
        case Table():
            return _table(block)
        case Picture():
            return _picture(block, folder, formats)


def _table(block: Table) -> str:
    heads = "".join(f'<th scope="col"{_side(block, i)}>{escape(head)}</th>' for i, head in enumerate(block.heads))
    rows = "\n".join(
        "<tr>" + "".join(f"<td{_side(block, i)}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in block.rows
    )
    title = f"<caption>{escape(block.title)}</caption>" if block.title else ""
    note = f"<p><small>{escape(block.note)}</small></p>" if block.note else ""
    head = f"{title}<thead><tr>{heads}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table>{head}\n<tbody>\n{rows}\n</tbody></table></div>{note}'


def _side(block: Table, column: int) -> str:
    return ' class="text"' if column in block.left else ""


def _front(block: Front) -> str:
    text = f'<b>{escape(block.title)}.</b> {escape(block.about)} <small>(<a href="{escape(block.name)}.svg">svg</a>)'
    drawn = f'<div class="screen">{block.wide}</div><div class="phone">{block.narrow}</div>'
    families = '<p class="families" hidden></p>'
    figure = f'<figure class="front" id="{escape(block.name)}">'
    return f"{figure}{drawn}{families}<figcaption>{text}</small></figcaption></figure>"


def _picture(block: Picture, folder: Path, formats: Sequence[str]) -> str:
    links = ", ".join(f'<a href="{escape(block.name)}.{kind}">{kind}</a>' for kind in formats)
    text = f"<b>{escape(block.title)}.</b> {escape(block.about)} <small>({links})</small>"
    shown = next((kind for kind in MEDIA if kind in formats), None)
    if shown is None:
        return f"<p>{text}</p>"
    data = base64.b64encode((folder / f"{block.name}.{shown}").read_bytes()).decode()
    alt = escape(f"{block.title}. {block.about}")
    image = f'<img src="data:{MEDIA[shown]};base64,{data}" alt="{alt}">'
    drawn = f'<div class="drawn" tabindex="0">{image}</div>'
    return f'<figure id="{escape(block.name)}">{drawn}<figcaption>{text}</figcaption></figure>'
