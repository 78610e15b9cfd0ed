"""A table of texts as aligned text, Markdown or LaTeX (booktabs)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.tables.markup import block, inline
from fsdp_lab.settings.user_errors import printable

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{special: "\\" + special for special in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "∞": r"$\infty$",
    }
)


@dataclass(frozen=True)
class Table:
    """A table of texts: ``rows`` have a text for each heading, ``note`` is a line below.

    ``left`` are the columns of text, which begin at the left; numbers end at the right."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    left: Sequence[int] = (0,)

    def text(self) -> str:
        """The table in columns of spaces, for a terminal."""
        lines = [[printable(cell) for cell in line] for line in (self.heads, *self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.heads))]
        shown = [
            "  ".join(
                cell.ljust(width) if i in self.left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        title, note = printable(self.title), printable(self.note)
        return "\n".join([title, "", *(line.rstrip() for line in shown), *_below(note)])

    def markdown(self) -> str:
        """The table with pipes, under its title in bold."""
        align = "".join("|---" if i in self.left else "|---:" for i in range(len(self.heads))) + "|"
        lines = ["| " + " | ".join(map(inline, line)) + " |" for line in [self.heads, *self.rows]]
        return "\n".join([f"**{inline(self.title)}**", "", lines[0], align, *lines[1:], *_below(block(self.note))])

    def latex(self) -> str:
        r"""The table as LaTeX's ``table`` environment; the document needs ``\usepackage{booktabs}``."""
        lines = [" & ".join(map(latex_escaped, line)) + r" \\" for line in [self.heads, *self.rows]]
        columns = "".join("l" if i in self.left else "r" for i in range(len(self.heads)))
        note = [r"\par\smallskip", r"{\footnotesize " + latex_escaped(self.note) + "}"] if self.note else []
        return "\n".join(
            [
                r"\begin{table}[t]",
                r"\centering\small\setlength{\tabcolsep}{4pt}",
                r"\caption{" + latex_escaped(self.title) + "}",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                *note,
                r"\end{table}",
            ]
        )


def latex_escaped(text: str) -> str:
    """``text`` as LaTeX shows it: specials escaped, signs and the x of a ratio in mathematics."""
    escaped = printable(text).translate(_LATEX)
    escaped = re.sub(r"(?<![\w}$-])-(?=\d)", "$-$", escaped)
    return re.sub(r"(?<=\d)x(?!\w)", r"$\\times$", escaped)


def _below(note: str) -> list[str]:
    return ["", note] if note else []
