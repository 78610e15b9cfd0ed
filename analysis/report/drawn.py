"""Draws a report's figures, and remembers what was drawn and what was not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.checks import fairness
from analysis.checks.finding import Finding
from analysis.figures.drawing import style as styles
from analysis.figures.drawing.data import Datum
from analysis.figures.drawing.formats import FORMATS
from analysis.figures.drawing.style import Style
from analysis.report.document import Block, Picture
from analysis.report.entries import Entry
from analysis.report.language.chinese import say
from analysis.rows.comparing.comparisons import Comparison
from analysis.tables.formats import Table

LIST = "figures.txt"  # names of the files drawn, in a report's folder
SHOWN = 4  # complaints about a figure


@dataclass
class Drawn:
    """Draws figures and remembers every figure's numbers, and the names of those that could not be drawn, with the
    reason."""

    folder: Path
    style: Style
    formats: Sequence[str]
    data: list[tuple[str, str, Datum]] = field(default_factory=list)  # section, figure, number
    left_out: list[tuple[str, str]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def pictures(
        self,
        drawn: Iterable[Entry[Any]],
        subject: Any,
        section: str,
        about: str,
        findings: Sequence[Finding] | None,
        comparison: Comparison | None = None,
    ) -> list[Block]:
        """The pictures of the entries for which there are data. Their foot lines sum up the ``findings``."""
        blocks: list[Block] = []
        for entry in drawn:
            name = f"{section}-{entry.name}"
            verdict = "" if findings is None else fairness.verdict(findings, comparison, entry.concerns)
            verdict = say(verdict, self.style.language)
            try:
                drawing = entry.prepare(subject)
                figure = drawing.draw(self.style, ". ".join(part for part in (about, verdict) if part))
            except ValueError as error:  # nothing to draw, which some figures know only by then
                self.left_out.append((name, str(error)))
                continue
            self.left_out += [(name, complaint) for complaint in _cut(drawing.complaints)]
            self.files += [path.name for path in styles.save(figure, self.folder, name, self.formats)]
            self.data += [(section, entry.name, one) for one in drawing.data]
            blocks.append(Picture(name, entry.title, entry.about))
        return blocks

    def keep(self, name: str, text: str) -> None:
        """Write a figure that is text already. ValueError for a folder that cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        except OSError as error:
            raise ValueError(f"cannot write figures to {self.folder} ({error.strerror}); name another folder") from None
        self.files.append(name)

    def forget_earlier(self) -> None:
        """Remove the figures that an earlier report in this folder drew and this one did not; list this one's."""
        index = self.folder / LIST
        earlier = index.read_text().splitlines() if index.exists() else []
        for name in set(earlier) - set(self.files):
            path = Path(name)
            if path.name == name and path.suffix.removeprefix(".") in FORMATS:
                (self.folder / name).unlink(missing_ok=True)
        index.write_text("".join(f"{name}\n" for name in self.files))


def _cut(complaints: Sequence[str]) -> list[str]:
    """The first few lines: a sweep without curves would complain of every run."""
    more = [f"and {len(complaints) - SHOWN} more"] if len(complaints) > SHOWN else []
    return [*complaints[:SHOWN], *more]
