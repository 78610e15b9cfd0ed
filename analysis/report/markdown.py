"""A report as Markdown, its pictures beside it."""

from __future__ import annotations

from analysis.report.document import Block, Command, Document, Facts, Notes, Picture, Text
from analysis.table_formats import Table


def render(document: Document, picture_format: str) -> str:
    """The whole text. ``picture_format``: which of the written formats is shown (svg, png)."""
    parts = [f"# {document.title}"]
    for section in document.sections:
        parts.append(f"## {section.title}")
        parts += [_block(block, picture_format) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block, picture_format: str) -> str:
    match block:
        case Text():
            return block.text
        case Facts():
            return "\n".join(f"- {name}: {value}" for name, value in block.facts)
        case Notes():
            return "\n".join(f"- **{kind}** {text}" for kind, text in block.notes)
        case Command():
            return "\n".join(f"    {line}" for line in block.text.splitlines())
        case Table():
            return block.markdown()
        case Picture():
            return f"**{block.title}.** {block.about}\n\n![{block.title}]({block.name}.{picture_format})"
