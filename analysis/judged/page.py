"""The page's sections: the answer, laws, what a reviewer would object to, bytes, error, speed, trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.figures import pareto
from analysis.figures.drawing import style as styles
from analysis.figures.drawing.palette import look
from analysis.figures.drawing.style import Style
from analysis.judged.place import Neighbour, Place
from analysis.report.document import Block, Command, Document, Facts, Notes, Paragraph, Picture, Section, Text
from analysis.tables.formats import Table

FIGURE = "place"
FORMATS = ("svg",)
_SHOWN = 8  # neighbours on either side
Facts_ = Mapping[str, Any]
_DATA = {"gauss": "Gaussian", "laplace": "Laplace", "real": "real gradients"}


def document(facts: Facts_, place: Place | None, why_not: str, folder: Path) -> Document:
    """The whole page; its figure is written to ``folder``."""
    method = facts["look"].get("method", facts["file"])
    sections = [
        Section("answer", "The answer", [Paragraph(sentences(facts, place, why_not))]),
        _laws(facts),
        _objections(facts, place),
        *_measured(facts),
        _trainings(place, why_not, folder),
        _how(facts),
    ]
    return Document(f"Judged: {method}", sections)


def sentences(facts: Facts_, place: Place | None, why_not: str) -> list[str]:
    """What was found, most important first."""
    laws, checks = outcomes(facts, "law"), outcomes(facts, "check")
    held = [sum(one["holds"] for one in some) for some in (laws, checks)]
    said = [f"{held[0]} of {len(laws)} laws and {held[1]} of {len(checks)} checks hold."]
    if facts["broken"]:
        said = [f"Not to be compared: something is broken ({facts['broken'][0]}).", *said]
    if place is None:
        return [*said, f"No trainings: {why_not}."]
    mine = place.judged
    said.append(f"Gradients take {mine.bits:.3g} bits a parameter and step; PPL changes by {_change(mine)}.")
    others = len(place.neighbours) - 1
    if others:
        better = place.not_worse_at_fewer_bits
        names = f" ({', '.join(better[:3])}{' and more' if len(better) > 3 else ''})" if better else ""
        said.append(
            f"Of {others} reference arms, {len(better)} send no more bits and lose no more, by the means{names}."
        )
    if mine.low is None:
        said.append("One seed has no interval: chance alone moves such a difference by about 1 %.")
    said.append("This is known of this setting alone: its model, data, length and learning rate.")
    return said


def outcomes(facts: Facts_, kind: str) -> list[dict[str, Any]]:
    """All lines of one kind, of every part."""
    return [fact for part in facts["facts"].values() for fact in part if fact["kind"] == kind]


def _laws(facts: Facts_) -> Section:
    blocks: list[Block] = []
    for kind, title in (("law", "Laws of all methods"), ("check", "Checks on two real ranks")):
        rows = [
            [one["name"].replace("_", " "), "holds" if one["holds"] else "BROKEN", one["message"] or one["about"]]
            for one in outcomes(facts, kind)
        ]
        if rows:
            blocks.append(Table(title, (kind, "", "what it says, or what was seen"), rows, left=(0, 1, 2)))
    late = [("error", text) for text in facts["broken"]]
    return Section("laws", "Laws and checks", [*([Notes(late)] if late else []), *blocks])


def _objections(facts: Facts_, place: Place | None) -> Section:
    notes = [(severity, text) for severity, text in facts["objections"]]
    heard = place.findings if place is not None else ()
    notes += [(one.severity, f"{one.subject}: {one.what}; {one.advice} [{one.check}]") for one in heard]
    text = Text("Beside broken laws and checks. What no program can find out is listed in docs/library/judging.md.")
    return Section("objections", "What a reviewer would object to", [text, Notes(notes) if notes else Text("Nothing.")])


def _measured(facts: Facts_) -> list[Section]:
    return [
        Section(
            "bytes", "Bytes: declared, counted, moved", [*_bits(facts), *_worlds(facts)] or [Text("Not measured.")]
        ),
        Section("error", "What arrives", [*_errors(facts)] or [Text("Not measured.")]),
        Section("speed", "Time to encode and decode", [*_speed(facts)] or [Text("Not measured.")]),
    ]


def _bits(facts: Facts_) -> list[Block]:
    rows = [
        [str(rank), *(_bit(one[key]) for key in ("declared", "counted", "moved"))]
        for fact in outcomes(facts, "bits")
        for rank, one in enumerate(fact["by_rank"])
    ]
    note = "Bits an element that had to reach the other rank; moved: handed to torch's collectives, seen from outside."
    return [Table("Two real ranks", ("rank", "declared", "counted", "moved"), rows, note)] if rows else []


def _bit(value: float | None) -> str:
    return "by the data" if value is None else f"{value:.3f}"


def _worlds(facts: Facts_) -> list[Block]:
    rows = [
        [str(one["world"]), f"{one['bits']:.3f}", str(one["rounds"]), f"{one['state_bytes']:.2f}"]
        for one in outcomes(facts, "world")
    ]
    heads = ("ranks", "bits", "rounds", "bytes of state a parameter")
    return [Table("By number of ranks (virtual)", heads, rows)] if rows else []


def _errors(facts: Facts_) -> list[Block]:
    blocks: list[Block] = []
    for data, title in _DATA.items():
        some = [one for one in outcomes(facts, "error") if one["data"] == data]
        rows = [
            [_mine(one), f"{one['bits']:.3f}", f"{one['nmse']:.3g}", f"{one['cosine']:.4f}"]
            for one in sorted(some, key=lambda one: -one["bits"])
        ]
        note = "NMSE: squared error over squared size, of one collective, error feedback off."
        blocks += [Table(title, ("method", "bits", "NMSE", "cosine"), rows, note)] if rows else []
    return blocks


def _speed(facts: Facts_) -> list[Block]:
    rows = [
        [
            _mine(one),
            one["operation"],
            f"{one['memcpy_ratio']:.3g}",
            f"{one['gb_s']:.3g}",
            f"{1e3 * one['seconds']:.3g}",
        ]
        for one in outcomes(facts, "speed")
    ]
    note = "x memcpy: float32 bytes a second over those of a plain copy, timed before every measurement. One thread."
    heads = ("method", "operation", "x memcpy", "GB/s", "ms")
    return [Table("One rank computes alone", heads, rows, note, left=(0, 1))] if rows else []


def _mine(one: Mapping[str, Any]) -> str:
    return f"> {one['label']}" if one["judged"] else str(one["label"])


def _trainings(place: Place | None, why_not: str, folder: Path) -> Section:
    title = "Trainings: its place among the methods"
    if place is None:
        return Section("trainings", title, [Notes([("note", f"no trainings: {why_not}")])])
    blocks: list[Block] = [Facts([("setting", place.setting), ("digits", place.digits)]), _neighbours(place)]
    styles.save(drawn(place, Style()), folder, FIGURE, FORMATS)
    about = (
        f"{place.judged.label} among the reference rows: change of validation PPL against none, seed by seed, over the "
        "compression of gradients. Bars: 95 % intervals; stepped line: Pareto front of the means."
    )
    return Section("trainings", title, [*blocks, Picture(FIGURE, "Quality against compression of gradients", about)])


def drawn(place: Place, style: Style) -> Figure:
    """The figure of quality against compression, with an arrow to the judged method."""
    figure = pareto.draw(place.points, style, traffic="gradients", foot=place.setting)
    mine = next(point for point in place.points if point.label == place.judged.label)
    with style:
        axes = figure.axes[0]
        at = mine.ratio or 0.0, 100 * mine.change
        colour = look(mine.family).colour
        axes.plot(*zip(at, strict=True), marker="o", ms=2.2 * style.font, mfc="none", mec=colour, ls="none", zorder=7)
        axes.annotate(
            mine.label,
            at,
            (0.02, 0.95),
            textcoords="axes fraction",
            color=colour,
            fontweight="bold",
            va="top",
            zorder=7,
            arrowprops={"arrowstyle": "->", "color": colour, "shrinkB": 1.1 * style.font},
        )
    return figure


def _neighbours(place: Place) -> Table:
    at = next(i for i, one in enumerate(place.neighbours) if one.is_judged)
    near = place.neighbours[max(at - _SHOWN, 0) : at + _SHOWN + 1]
    rows = [
        [f"> {one.label}" if one.is_judged else one.label, f"{one.bits:.3f}", _change(one), str(one.pairs)]
        for one in near
    ]
    return Table("Nearest by bits", ("arm", "bits", "change of PPL, 95 % interval", "pairs"), rows, left=(0, 2))


def _change(one: Neighbour) -> str:
    text = f"{100 * one.change:+.2f} %"
    return text if one.low is None or one.high is None else f"{text} [{100 * one.low:+.2f}, {100 * one.high:+.2f}]"


def _how(facts: Facts_) -> Section:
    look, machine = facts["look"], facts["machine"]
    known: Sequence[tuple[str, str]] = [
        ("file", f"{facts['file']}, sha256 {facts['sha256'][:16]}"),
        ("what it says of itself", look.get("about", "-")),
        ("settings", str(look.get("settings", "-"))),
        ("machine", f"{machine.get('cores')} cores of {machine.get('cpu')}, {machine.get('ram_gb')} GB"),
        ("versions", ", ".join(f"{name} {version}" for name, version in facts["versions"].items())),
        ("seconds", f"{facts['seconds']:g}"),
    ]
    return Section(
        "how", "How this was measured", [Facts(known), Text("This page was made by"), Command(facts["command"])]
    )
