"""Baseline and methods as tables: what was saved, what it cost, and which hold the bar.

    python -m analysis.tables FILE... [--markdown | --latex] [--select COLUMN=VALUE ...] [--baseline ARM]

prints two tables for each comparison in the files: every arm's figures, and what they answer; one of accuracy, where
rows have it; and one of the time to a target and PPL at a time, where runs were given those (``target_ppl``,
``ppl_at_s``). Last, where arms were run in several settings, a table of their changes in each (``--tuned`` without a
name: learning rates are settings, too). Ratios name their
denominator and are of all traffic, unless they say gradients; **bits** are those a parameter and step, both directions,
or, where ranks divide a model, those a value of the activations and their gradients.
**PPL** is the mean over seeds with their standard deviation (sd) and the 95 % interval of the mean, **change** that of
PPL against the baseline seed by seed, with its 95 % interval. The **bar** is at least 2 times fewer bytes at no more
than 1 % worse PPL (one-sided, 95 %). An arm is **best at its bits** where none with as few has a better PPL; perhaps,
where one has, but not beyond chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.checks.fairness import Judge, overall, verdict
from analysis.checks.finding import Finding
from analysis.rows.comparing.comparisons import Comparison, titles
from analysis.rows.comparing.groups import several
from analysis.statistics.answers import MARGIN, RATIO, Line, lines, what_is_missing
from analysis.statistics.goals import Goal, goals
from analysis.statistics.intervals import Summary
from analysis.tables.accuracy import accuracy_table
from analysis.tables.by_setting import by_setting_table
from analysis.tables.changes import change_text, ppl_digits, summary_text
from analysis.tables.formats import Table
from analysis.tables.options import add_options, comparisons_of, rows_of
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import user_errors

HEADS = (
    "arm",
    "gradients, fp32",
    "all, fp32",
    "all, bf16",
    "bits",
    "tokens/s",
    "communication",
    "PPL",
    "change",
    "bar",
    "seeds",
    "failed",
)
_LEFT = (0, HEADS.index("bar"))


def comparison_table(
    comparison: Comparison, findings: Sequence[Finding], shared_seeds: bool = False, title: str | None = None
) -> Table:
    """Every arm's numbers, the baseline first, then by ratio; the fairness verdict below.

    ``findings`` are what speaks against the comparison (`fairness.Judge`). ``title`` is by default the setting's label.
    """
    rows = [
        [
            line.label,
            _ratio(line.gradient_ratio),
            _ratio(line.ratio_fp32),
            _ratio(line.ratio_bf16),
            _number(line.bits, ".2f"),
            _mean(line.tokens_per_s),
            "-" if line.communication is None else f"{100 * line.communication:.1f} %",
            summary_text(line.ppl, digits=ppl_digits(line.ppl.mean)),
            change_text(line.change, digits=2, percent=True),
            "-" if line.bar == "baseline" else line.bar,
            str(len(line.runs.runs)),
            str(len(line.runs.failures) or "-"),
        ]
        for line in lines(comparison, shared_seeds)
    ]
    against = f", against {comparison.baseline.arm.label}" if comparison.baseline else ""
    title = f"{title or comparison.setting.label}{against}"
    return Table(title, HEADS, rows, overall(findings, comparison), _LEFT)


def goals_table(comparison: Comparison, findings: Sequence[Finding], title: str | None = None) -> Table | None:
    """Time to the target and perplexity at the fixed time, of runs that were given them; None where none was.

    ``findings`` are what speaks against the comparison. Times are medians over the baseline's seeds, or over the arm's
    where there is no baseline; a run that missed the target, failed or is missing counts as infinite. A run that ended
    before the fixed time has no perplexity there."""
    asked = goals(comparison)
    if asked is None:
        return None
    rows = [
        [
            goal.label,
            _spread(goal),
            "-" if goal.reached is None else f"{goal.reached} of {goal.runs}",
            "-" if goal.faster is None else f"{goal.faster:.2f}x",
            "-" if goal.ppl is None else summary_text(goal.ppl, digits=ppl_digits(goal.ppl.mean)),
            "-" if goal.ppl is None else f"{goal.ppl.n} of {goal.runs}",
        ]
        for goal in asked.arms
    ]
    target = "target PPL" if asked.target_ppl is None else f"PPL {asked.target_ppl:g}"
    at = "fixed time" if asked.at_s is None else f"{asked.at_s:g} s"
    heads = ("arm", f"time to {target}", "reached", "times as fast", f"PPL at {at}", "runs that long")
    said = ["time in optimizer steps, without evaluation: median over seeds (best to worst), a miss is infinite"]
    note = "; ".join([verdict(findings, comparison, ("quality", "times")), *said, *asked.left_out])
    return Table(f"{title or comparison.setting.label}: time to quality, quality at a time", heads, rows, note)


def answer_table(comparison: Comparison, shared_seeds: bool = False, title: str | None = None) -> Table:
    """The arms by what they answer: those that hold the bar by falling ratio, then the others, with the reason."""
    answers = [line for line in lines(comparison, shared_seeds) if line.bar != "baseline"]
    order = ("holds", "holds, fp32 only", "undecided", "unknown", "no: PPL", "no: ratio", "no: failed")
    answers.sort(key=lambda line: (order.index(line.bar), line.bits is None, line.bits or 0.0))
    rows = [
        [line.label, line.bar, _number(line.bits, ".2f"), _front(line), what_is_missing(line) or "-"]
        for line in answers
    ]
    holding = sum(line.bar.startswith("holds") for line in answers)
    title = f"{title or comparison.setting.label}: {holding} of {len(answers)} arms hold the bar"
    title += f" (ratio {RATIO:g} or more, PPL within {100 * MARGIN:g} %)"
    return Table(title, ("arm", "bar", "bits", "best at its bits", "what is missing"), rows, left=(0, 1, 3, 4))


def _front(line: Line) -> str:
    return {"yes": "yes", "perhaps": f"perhaps, or {line.beaten_by}", "no": f"no: {line.beaten_by}"}.get(
        line.front, "-"
    )


def _mean(summary: Summary | None) -> str:
    """The mean with the standard deviation alone, since it is a machine's noise from run to run."""
    if summary is None:
        return "-"
    return f"{summary.mean:,.0f}" + ("" if summary.std is None else f" (sd {summary.std:,.0f})")


def _spread(goal: Goal) -> str:
    text = _seconds(goal.time_s)
    is_one = goal.runs < 2 or goal.best_s is None or math.isinf(goal.best_s)
    return text if is_one else f"{text} ({_seconds(goal.best_s)} to {_seconds(goal.worst_s)})"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return "never" if math.isinf(value) else f"{value:,.1f} s"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main(argv: Sequence[str]) -> int:
    """Read the rows, compare them, print the tables."""
    parser = program("analysis.tables", __doc__)
    add_options(parser)
    parser.add_argument("--shared_seeds", action="store_true", help="pair over seeds that both arms have, not all")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--markdown", dest="form", action="store_const", const="markdown", default="text")
    formats.add_argument("--latex", dest="form", action="store_const", const="latex", help="needs booktabs")
    options = parser.parse_args(argv)
    with user_errors("tables"):
        rows = rows_of(options)
        (comparisons,) = comparisons_of(options, rows)
    shown, judge = [], Judge(rows)
    for comparison, title in zip(comparisons, titles(comparisons), strict=True):
        table = comparison_table(comparison, judge.findings(comparison), options.shared_seeds, title)
        shown.append(getattr(table, options.form)())
        if comparison.rivals and comparison.baseline is not None:
            shown.append(getattr(answer_table(comparison, options.shared_seeds, title), options.form)())
        for also in (accuracy_table, goals_table):
            further = also(comparison, judge.findings(comparison), title)
            if further is not None:
                shown.append(getattr(further, options.form)())
    shown += [getattr(by_setting_table(group), options.form)() for group in several(comparisons)]
    print("\n\n".join(shown))
    return 0
