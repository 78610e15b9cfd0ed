"""A report as Markdown, its pictures beside it."""

from __future__ import annotations

from analysis.report.document import Block, Command, Document, Facts, Front, Notes, Paragraph, Picture, Text
from analysis.tables import markup
from analysis.tables.formats import Table


def render(document: Document, picture_format: str) -> str:
    """The whole text. ``picture_format`` says which of the written formats is shown (svg, png)."""
    parts = [f"# {markup.inline(document.title)}"]
    for section in document.sections:
        parts.append(f"## {markup.inline(section.title)}")
        parts += [_block(block, picture_format) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block, picture_format: str) -> str:
    match block:
        case Text():
            return markup.block(block.text)
        case Paragraph():
            return markup.block(block.text)
        case Front():
            title = markup.inline(block.title)
            return f"**{title}.** {markup.inline(block.about)}\n\n![{title}]({block.name}.svg)"
        case Facts():
            return "\n".join(f"- {markup.block(name)}: {markup.inline(value)}" for name, value in block.facts)
        case Notes():
            return "\n".join(f"- **{block.shown.get(kind, kind)}** {markup.inline(text)}" for kind, text in block.notes)
        case Command():
            return "\n".join(f"    {line}" for line in block.text.splitlines())
        case Table():
            return block.markdown()
        case Picture():
            title = markup.inline(block.title)
            return f"**{title}.** {markup.inline(block.about)}\n\n![{title}]({block.name}.{picture_format})"
