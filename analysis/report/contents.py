"""What a report is made of: the sections' texts and tables, with figures drawn on the way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis.checks import fairness
from analysis.checks.fairness import Judge
from analysis.checks.finding import Finding
from analysis.drafts import acceptance_table
from analysis.predict.predictor import Predictor
from analysis.report import entries, plan
from analysis.report.document import Block, Command, Document, Facts, Notes, Section, Text
from analysis.report.drawn import Drawn
from analysis.report.entries import Behind, Entry, Machine
from analysis.report.opening.section import opening
from analysis.rows.comparing import groups
from analysis.rows.comparing.comparisons import Comparison
from analysis.rows.reading import Row, counted
from analysis.statistics import names
from analysis.statistics.time_to_quality import MeasuredSteps
from analysis.tables.accuracy import accuracy_table
from analysis.tables.by_setting import by_setting_table
from analysis.tables.comparison import answer_table, comparison_table, goals_table
from analysis.tables.formats import Table
from analysis.tables.markup import slug

SHOWN = 8  # subjects of findings of a kind
MOST_ARMS = 150  # of a comparison that has figures


@dataclass(frozen=True)
class Subject:
    """What a report is about: ``comparisons`` of language models, and comparisons of ``drafts``.

    ``left_out`` are complaints about lines that are no rows; ``command`` is the command line that makes the report."""

    files: Sequence[str]
    rows: Sequence[Row]
    left_out: Sequence[str]
    selection: Sequence[str]
    comparisons: Sequence[Comparison]
    drafts: Sequence[Comparison]
    machines: Sequence[Machine]
    machine_file: str
    command: str
    drawn_comparisons: int
    calibrated_model: str | None = None

    @cached_property
    def judge(self) -> Judge:
        """The judge of all rows: every section of the report takes its findings from this one."""
        return Judge(self.rows)

    @cached_property
    def steps(self) -> MeasuredSteps:
        """How long the steps of all rows took."""
        return MeasuredSteps(self.rows)

    def predictor(self, comparison: Comparison) -> Predictor | None:
        """The predictor of the model that the rows trained, if the calibration has it."""
        world = comparison.setting.world_size
        machines = [m for m in self.machines if (m.model, m.predictor.world) == (self.calibrated_model, world)]
        return machines[0].predictor if machines else None


def document(subject: Subject, drawn: Drawn) -> Document:
    """The whole report: the answer, what speaks against it, what was compared, then each comparison."""
    compared = subject.comparisons
    main = compared[0] if compared else None
    heard = subject.judge.findings(main) if main else []
    first = opening(main, heard, titles(compared)[0] if main else "", len(compared) + len(subject.drafts) - 1, drawn)
    named = zip(
        compared,
        anchors(compared),
        map(_heading, compared, titles(compared)),
        groups.firsts_of_links(compared),
        strict=True,
    )
    rest = [_comparison(*one, place, subject, drawn) for place, one in enumerate(named)]
    for kind, drawable, alike in (
        ("Along world sizes", entries.OF_WORLDS, groups.worlds(subject.comparisons)),
        ("Along links", entries.OF_LINKS, groups.links(subject.comparisons)),
    ):
        rest += [_group(kind, drawable, group, place, subject, drawn) for place, group in enumerate(alike)]
    rest += [_several(group, place, subject, drawn) for place, group in enumerate(groups.several(subject.comparisons))]
    of_drafts = zip(subject.drafts, anchors(subject.drafts), strict=True)
    rest += [_drafts(*one, place, subject, drawn) for place, one in enumerate(of_drafts)]
    rest += [_machine(machine, subject, drawn) for machine in subject.machines]
    system = drawn.pictures([entries.SYSTEM], None, "all", "", None)
    rest.append(Section("system", "How it works", system))
    sections = [first, _fairness(subject), _plan(subject), *rest, _missing(drawn)]
    return Document("Communication compression: report", sections)


def _heading(comparison: Comparison, title: str) -> str:
    """The title with what the arms are compared with."""
    return f"{title}, against {'no baseline' if comparison.baseline is None else comparison.baseline.arm.label}"


def anchors(comparisons: Sequence[Comparison]) -> list[str]:
    """A name for each comparison that is good in addresses and file names, the same for the same rows."""
    numbers: dict[str, itertools.count[int]] = {}
    names: dict[str, None] = {}
    for comparison in comparisons:
        name = slug(comparison.setting.label)
        numbered = (f"{name}-no{number}" for number in numbers.setdefault(name, itertools.count(2)))
        names[next(one for one in itertools.chain([name], numbered) if one not in names)] = None
    return list(names)


def titles(comparisons: Sequence[Comparison]) -> list[str]:
    """A title for each comparison: its setting's label and, where an earlier one has the same, what differs."""
    first: dict[str, Comparison] = {}
    texts = []
    for comparison in comparisons:
        label = comparison.setting.label
        twin = first.setdefault(label, comparison)
        differences = [] if twin is comparison else twin.setting.differences(comparison.setting)
        more = f"; {len(differences) - 2} more" if len(differences) > 2 else ""
        texts.append(f"{label} ({'; '.join(differences[:2])}{more})" if differences else label)
    return texts


def _fairness(subject: Subject) -> Section:
    findings = subject.judge.everything([*subject.comparisons, *subject.drafts])
    errors = sum(finding.severity == "error" for finding in findings)
    warnings, rows = counted(len(findings) - errors, "warning"), counted(len(subject.rows), "row")
    counts = f"{counted(errors, 'error')} and {warnings} found in {rows}."
    notes = [_note(same) for same in _by_check(findings)]
    blocks: list[Block] = [Text(counts + " What an error concerns (quality, times or bytes) is not to be compared.")]
    return Section("fairness", "What speaks against these comparisons", [*blocks, Notes(notes)] if notes else blocks)


def _by_check(findings: Sequence[Finding]) -> list[list[Finding]]:
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.check), []).append(finding)
    return list(groups.values())


def _note(same: Sequence[Finding]) -> tuple[str, str]:
    """The first finding of its kind in full; for the others, which comparisons have it, too."""
    first = same[0]
    text = f"{first.subject}: {first.what}. {first.advice[:1].upper()}{first.advice[1:]} [{first.check}]"
    others = list(dict.fromkeys(f.subject for f in same if f.subject != first.subject))
    more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    return first.severity, text + (f" Likewise: {'; '.join(others[:SHOWN])}{more}." if others else "")


def _plan(subject: Subject) -> Section:
    facts = [
        ("rows", f"{len(subject.rows)} of {', '.join(subject.files)}"),
        ("selected", ", ".join(subject.selection) or "all"),
        *plan.source(subject.rows),
    ]
    overview = [
        [
            title,
            str(len(c.arms)),
            str(len(c.rows)),
            str(sum(len(r.failures) for r in c.arms)),
            fairness.overall(subject.judge.findings(c), c),
        ]
        for compared in (subject.comparisons, subject.drafts)
        for c, title in zip(compared, titles(compared), strict=True)
    ]
    blocks: list[Block] = [
        Facts(facts),
        Table(
            "Comparisons, the largest first", ["setting", "arms", "runs", "failed", "verdict"], overview, left=(0, 4)
        ),
        Text("This report was made by"),
        Command(subject.command),
    ]
    if subject.left_out:
        blocks += [Text(f"Lines left out: {len(subject.left_out)}."), Notes([("note", t) for t in subject.left_out])]
    return Section("plan", "What was compared", blocks)


def _comparison(
    comparison: Comparison, name: str, title: str, has_links: bool, place: int, subject: Subject, drawn: Drawn
) -> Section:
    """The section of one comparison.

    ``has_links``: it shows the figures of all comparisons that differ in their link alone. ``place`` counts from 0."""
    findings = subject.judge.findings(comparison)
    facts = Facts(plan.facts(comparison, subject.comparisons[0]))
    tables = [comparison_table(comparison, findings)]
    if comparison.baseline is not None and comparison.rivals:
        tables.append(answer_table(comparison))
    tables += [table for of in (accuracy_table, goals_table) if (table := of(comparison, findings)) is not None]
    drawn.tables += tables
    short = [[runs.arm.label, names.full(runs.arm)] for runs in comparison.arms if runs.arm.name is not None]
    tables += [Table("Short names", ["arm", "settings"], short, left=(0, 1))] if short else []
    why_not = _too_much([comparison], place, subject)
    if why_not:
        drawn.left_out.append((f"{name}, all figures", why_not))
        return Section(name, title, [Notes([_judged(findings, comparison)]), facts, *tables])
    pictures = drawn.pictures(entries.OF_COMPARISON, comparison, name, comparison.setting.label, findings, comparison)
    if has_links:
        about = groups.without_link(comparison.setting).label
        behind = Behind(comparison, subject.steps, subject.predictor(comparison))
        pictures += drawn.pictures(entries.OF_LINKED, behind, name, about, findings, comparison)
    return Section(name, title, [Notes([_judged(findings, comparison)]), facts, *tables, *pictures])


def _too_much(shown: Sequence[Comparison], place: int, subject: Subject, kind: str = "comparisons") -> str | None:
    """Why a comparison, or a group of them, gets no figures: nobody can read a figure of a thousand bars, or a thousand
    figures. ``place`` counts from 0 among those of its ``kind``."""
    arms = len({runs.arm for comparison in shown for runs in comparison.arms})
    if arms > MOST_ARMS:
        return f"{arms} arms, and figures have {MOST_ARMS} at most; choose some with --select"
    if place >= subject.drawn_comparisons:
        return (
            f"figures are drawn for the {subject.drawn_comparisons} largest {kind}; choose others with --select, "
            "or draw more with --drawn_comparisons"
        )
    return None


def _drafts(comparison: Comparison, name: str, place: int, subject: Subject, drawn: Drawn) -> Section:
    findings = subject.judge.findings(comparison)
    table = acceptance_table(comparison, findings)
    drawn.tables.append(table)
    facts = Facts(plan.facts(comparison, subject.drafts[0]))
    blocks: list[Block] = [Notes([_judged(findings, comparison)]), facts, table]
    why_not = _too_much([comparison], place, subject)
    if why_not:
        drawn.left_out.append((f"{name}, all figures", why_not))
    else:
        about = comparison.setting.label
        blocks += drawn.pictures(entries.OF_DRAFTS, comparison, name, about, findings, comparison)
    return Section(name, comparison.setting.label, blocks)


def _judged(findings: Sequence[Finding], comparison: Comparison) -> tuple[str, str]:
    """The verdict, and the kind of note that shows it."""
    verdict = fairness.overall(findings, comparison)
    return "error" if fairness.is_unfair(verdict) else "warning" if findings else "note", verdict


def _group(
    title: str, drawable: Sequence[Entry[Any]], group: Sequence[Comparison], place: int, subject: Subject, drawn: Drawn
) -> Section:
    """The section of comparisons that differ in one thing. ``place`` counts from 0."""
    name = f"{title.lower().replace(' ', '-')}-{place + 1}"
    blocks: list[Block] = [Text("; ".join(c.setting.label for c in group))]
    why_not = _too_much(group, place, subject, "groups of comparisons")
    if why_not:
        drawn.left_out.append((f"{name}, all figures", why_not))
        return Section(name, title, blocks)
    findings = [finding for c in group for finding in subject.judge.findings(c)]
    findings = sorted(findings, key=lambda finding: finding.severity)
    return Section(name, title, [*blocks, *drawn.pictures(drawable, group, name, "", findings)])


def _several(group: Sequence[Comparison], place: int, subject: Subject, drawn: Drawn) -> Section:
    """The section of comparisons that differ in whatever it is, with a table that names what differs."""
    table = by_setting_table(group)
    drawn.tables.append(table)
    section = _group("Across settings", entries.OF_SETTINGS, group, place, subject, drawn)
    return Section(section.anchor, section.title, [table, *section.blocks[1:]])


def _machine(machine: Machine, subject: Subject, drawn: Drawn) -> Section:
    title = f"Predicted: {machine.model}, {machine.predictor.world} ranks"
    name = f"predicted-{slug(machine.model)}-{machine.predictor.world}-ranks"
    about = f"predicted from {subject.machine_file}: {machine.model}, {machine.predictor.world} ranks"
    text = "Not the runs above: times of a calibrated machine and model, behind links of any bandwidth."
    return Section(name, title, [Text(text), *drawn.pictures(entries.OF_MACHINE, machine, name, about, None)])


def _missing(drawn: Drawn) -> Section:
    notes = [("note", f"{name}: {reason}") for name, reason in drawn.left_out]
    return Section("left-out", "What is missing in the figures", [Notes(notes)] if notes else [Text("None.")])
