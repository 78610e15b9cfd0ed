"""How a report begins: one paragraph with the answer, and one figure, of its largest comparison."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.checks.finding import Finding
from analysis.figures.drawing.data import Datum
from analysis.report.document import Block, Front, Paragraph, Section
from analysis.report.drawn import Drawn
from analysis.report.language.chinese import say
from analysis.report.opening import front
from analysis.report.opening.answer import Answer, Answered, answer
from analysis.report.opening_words import ABOUT, TITLE
from analysis.rows.comparing.comparisons import Comparison

NAME = "front"
SIZES = ((1000, 520), (380, 470))  # px: of a screen, and of a phone


def opening(comparison: Comparison | None, findings: Sequence[Finding], title: str, more: int, drawn: Drawn) -> Section:
    """The first section, about ``comparison`` with its ``findings``; ``more`` comparisons follow it."""
    heading = "The answer"
    if comparison is None:
        return Section("answer", heading, [Paragraph(["There is no comparison of language models in these rows."])])
    judged = answer(comparison, findings, title)
    follow = [f"{more} more comparisons follow below, each with its own verdict."] if more else []
    blocks: list[Block] = [Paragraph([*judged.sentences, *follow])]
    return Section("answer", heading, [*blocks, *_figure(judged, drawn)])


def _figure(judged: Answer, drawn: Drawn) -> list[Block]:
    base, language = judged.comparison.baseline, drawn.style.language
    try:
        if len(judged.comparison.arms) > len(judged.arms):
            raise ValueError(f"{len(judged.comparison.arms)} arms, and the figure has {len(judged.arms)} at most")
        shown = front.drawable(judged.arms)
    except ValueError as error:
        drawn.left_out.append((NAME, str(error)))
        return []
    name = "" if base is None else base.arm.label
    title = f"{say(TITLE, language)}, {judged.comparison.setting.label}"
    wide, narrow = (
        front.svg(shown, width, height, name, lambda text: say(text, language), title) for width, height in SIZES
    )
    drawn.keep(f"{NAME}.svg", wide)
    drawn.data += [("answer", NAME, _datum(one)) for one in shown]
    return [Front(NAME, wide, narrow, TITLE, ABOUT)]


def _datum(one: Answered) -> Datum:
    change = one.line.change
    low, high = (None, None) if change is None else (change.low, change.high)
    return Datum(
        one.label,
        one.line.runs.arm.family,
        f"change of validation PPL, % ({one.status})",
        one.change,
        None if low is None else 100 * low,
        None if high is None else 100 * high,
        0 if change is None else change.n,
        one.line.bits,
    )
