"""The chart's page: the answer with its interactive figure, what speaks against it, every arm, times, and tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.chart import figures, rates
from analysis.chart.places import RATES, Chart, Place
from analysis.checks import fairness
from analysis.checks.finding import QUALITY_AND_BYTES, Concerns
from analysis.figures.drawing import style as styles
from analysis.figures.drawing.style import Style
from analysis.report.document import Block, Command, Document, Facts, Front, Notes, Paragraph, Picture, Section, Text
from analysis.report.opening.answer import WORDS
from analysis.statistics import names
from analysis.statistics.tuning import Tuning
from analysis.tables.changes import change_text
from analysis.tables.formats import Table
from analysis.tables.markup import slug

QUALITY, TIMES, FRONT = "chart", "times", "front"  # names of files
_NAMED = 6  # arms in a sentence
_ABOUT_FRONT = (
    "Change of validation perplexity, seed by seed, over the bits that a rank sends for a parameter and optimizer step "
    "in all operations, local steps divided in. Filled: the baseline, and arms at whose bits nothing is better; "
    "hollow: the others; faint: not compared fairly. Bars: 95 % intervals; stepped line: front of the means. Point at "
    "a mark, or reach it with Tab, to read the arm; a click leaves its kind alone."
)
_ABOUT_LINK = (
    "As the first figure, against the predicted seconds of a whole training behind this link: filled are arms at whose "
    "time nothing is better."
)
_ABOUT_QUALITY = "The same for a paper. Bits fall to the right; a name that has no room is a number of the list."
_ABOUT_TIMES = (
    "Predicted seconds of a whole training behind each link, for arms whose mean loss of quality is within the margin; "
    "the others never get there. A schedule reaches its quality at its end."
)


def document(chart: Chart, chosen: Tuning | None, command: str, drawn: Mapping[str, Block]) -> Document:
    """The whole page. ``drawn`` has the figures, by the names of their files, as `drawings` made them."""
    front, quality, times = ([drawn[name]] if name in drawn else [] for name in (FRONT, QUALITY, TIMES))
    links = [drawn[name] for name in map(of_link, RATES) if name in drawn]
    sections = [
        Section("answer", "The answer", [Paragraph(sentences(chart)), *front]),
        _objections(chart),
        Section("arms", "Every arm", [arms_table(chart), *_operations(chart), *quality, *_short(chart)]),
        Section("times", "Time to quality behind a link", [*_times(chart), *times, *links]),
        _tuning(chart, chosen),
        Section("how", "How this was made", [_facts(chart), Text("This page was made by"), Command(command)]),
    ]
    return Document("The field on one chart", sections)


def of_link(rate: str | None) -> str:
    """The name of the interactive figure of a link; None: of the one against bits."""
    return FRONT if rate is None else f"{FRONT}-{slug(rate)}"


def drawings(chart: Chart, folder: Path, style: Style, formats: Sequence[str]) -> tuple[dict[str, Block], list[str]]:
    """Draw all figures into ``folder``. Returns those that there are, by name, and why others could not be drawn."""
    by_name = {QUALITY: _verdict(chart, QUALITY_AND_BYTES), TIMES: _verdict(chart, ("quality", "times"))}
    drawn: dict[str, Block] = {}
    left_out = []
    for rate in (None, *RATES):
        name = of_link(rate)
        try:
            wide, narrow = figures.interactive(chart, rate)
        except ValueError as error:
            left_out.append(f"{name}: {error}")
            continue
        (folder / f"{name}.svg").write_text(wide)
        title = "Quality against bits" if rate is None else f"Quality against the time of a training at {rate}"
        drawn[name] = Front(name, wide, narrow, title, _ABOUT_FRONT if rate is None else _ABOUT_LINK)
    for name, draw, title, about in (
        (QUALITY, figures.quality, "Quality against bits", _ABOUT_QUALITY),
        (TIMES, figures.times, "Time to quality behind a link", _ABOUT_TIMES),
    ):
        try:
            styles.save(draw(chart, style, by_name[name]), folder, name, formats)
            drawn[name] = Picture(name, title, about)
        except ValueError as error:
            left_out.append(f"{name}: {error}")
    return drawn, left_out


def sentences(chart: Chart) -> list[str]:
    """What the chart says, most important first."""
    comparison, base = chart.comparison, chart.comparison.baseline
    baseline = "" if base is None else base.arm.label
    front, beaten = chart.having("front"), chart.beaten_everywhere
    said = [
        f"{comparison.setting.label}: {len(comparison.rivals)} arms against {baseline}.",
        f"On the front, where nothing sends as few bits and loses less, by the means: {_listed(front)}."
        if front
        else "No arm is on the front: none is compared fairly.",
    ]
    near = [place for place in front if place.reaches]
    if near:
        said.append(f"Fewest bits within {100 * chart.margin:g} % of its perplexity: {_told(near[0])}.")
    said.append(
        f"Beaten everywhere, at their bits and behind every link, beyond chance: {_names(beaten)}."
        if beaten
        else "No arm is beaten everywhere beyond chance."
    )
    if failed := chart.having("failed"):
        said.append(f"Failed or diverged in some run: {_names(failed)}.")
    if unfair := chart.having("unfair"):
        said.append(f"Not compared fairly, so nothing is said of them (faint in the figure): {_names(unfair)}.")
    said.append("This is known of this setting alone: its model, data, length and number of ranks.")
    return said


def _listed(some: Sequence[Place]) -> str:
    more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    return "; ".join(map(_told, some[:_NAMED])) + more


def _told(place: Place) -> str:
    line = place.answered.line
    bits = "bits unknown" if line.bits is None else f"{line.bits:.3g} bits"
    return f"{line.label} ({bits}, PPL {change_text(line.change, 2, percent=True)})"


def _names(some: Sequence[Place]) -> str:
    return figures.names_of(some, 3 * _NAMED)


def _verdict(chart: Chart, concerns: Sequence[Concerns]) -> str:
    return fairness.verdict(chart.findings, chart.comparison, concerns)


def _objections(chart: Chart) -> Section:
    notes = [(one.severity, f"{one.subject}: {one.what}; {one.advice} [{one.check}]") for one in chart.findings]
    return Section("objections", "What speaks against it", [Notes(notes) if notes else Text("Nothing was found.")])


def arms_table(chart: Chart) -> Table:
    """Every arm with its bits, change of PPL, place, and the values at which it was judged."""
    lines = []
    for place in chart.places:
        line, answered = place.answered.line, place.answered
        change = "-" if answered.status == "baseline" else change_text(line.change, 2, percent=True)
        pairs = str(len(line.runs.runs) if line.change is None else line.change.n)
        rate = ", ".join(f"{value:g}" for value in line.runs.tuned.values() if value is not None)
        word = "beaten everywhere" if place.is_beaten_everywhere else WORDS[answered.status].partition(":")[0]
        numbers = [_bits(line.bits), change, pairs, rate, str(line.runs.candidates), _bits(place.kept)]
        lines.append([answered.label, *numbers, word, answered.why])
    heads = ("arm", "bits", "change of PPL, 95 % interval", "pairs", "rate", "tried", "kept", "place", "why")
    note = (
        "Bits a parameter and optimizer step that a rank sends, times W / (W - 1): all operations, the whole training. "
        "Tried: rates. Kept: bytes a parameter that a rank keeps for its communication."
    )
    return Table("Every arm, the fewest bits first", heads, lines, note, left=(0, 2, 7, 8))


def _bits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _operations(chart: Chart) -> list[Table]:
    """Tables of the bits that each arm sends, operation by operation."""
    operations = list(dict.fromkeys(name for place in chart.places for name in place.by_operation))
    lines = [
        [place.answered.label, *(_bits(place.by_operation.get(name)) for name in operations)] for place in chart.places
    ]
    return [Table("Bits by operation", ("arm", *operations), lines)] if operations else []


def _short(chart: Chart) -> list[Table]:
    short = [[place.answered.label, names.full(place.runs.arm)] for place in chart.places if place.runs.arm.name]
    return [Table("Short names", ("arm", "settings"), short, left=(0, 1))] if short else []


def _times(chart: Chart) -> list[Block]:
    if chart.why_no_times:
        return [Notes([("note", f"no times: {chart.why_no_times}")])]
    whose = "of short runs on a quiet machine" if chart.timed_apart else "of the runs that are judged"
    text = (
        f"Predicted, not measured: the measured steps {whose}, and what the link adds by its bytes "
        "(analysis/predict/behind.py says what is assumed)."
    )
    lines = [
        [place.answered.label, *(_seconds(place, name) for name in RATES), "yes" if place.reaches else "no"]
        for place in chart.places
    ]
    heads = ("arm", *(f"{name}, s" for name in RATES), f"within {100 * chart.margin:g} %")
    note = "Seconds of the whole training; +: no arm has a lower time and loses less, by the means."
    return [Text(text), Table("A training behind each link", heads, lines, note)]


def _seconds(place: Place, rate: str) -> str:
    seconds = place.seconds[rate]
    return "-" if seconds is None else f"{seconds:,.0f}{' +' * (place.at_links.get(rate) == 'yes')}"


def _tuning(chart: Chart, chosen: Tuning | None) -> Section:
    text = (
        "No rate was tuned: every arm has that of the table above."
        if chosen is None
        else "Every arm's rate was chosen by its mean loss on the tuning seeds, and judged on others."
    )
    called = {names.full(place.runs.arm): place.answered.label for place in chart.places}
    tables = [] if chosen is None else [rates.table(chosen, called)]
    return Section("tuning", "How rates were chosen", [Text(text), *tables])


def _facts(chart: Chart) -> Facts:
    rows = [row for runs in chart.comparison.arms for row in runs.runs.values()]
    known = [
        ("setting", chart.comparison.setting.label),
        ("quality and bytes", _verdict(chart, QUALITY_AND_BYTES)),
        ("times", _verdict(chart, ("times",))),
        ("runs", str(len(rows))),
        ("commits", ", ".join(sorted({str(row.get("git_commit"))[:10] for row in rows}))),
        ("hardware", ", ".join(sorted({str((row.get("hardware") or {}).get("cpu")) for row in rows}))),
    ]
    return Facts(known)
