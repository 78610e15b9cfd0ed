"""The report's first paragraph and figure: `analysis.claim`'s verdict, hostile names, Chinese, a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.checks.fairness import findings_of
from analysis.claim import claim
from analysis.report.document import Document, Front, Notes, Section, Text
from analysis.report.language.chinese import say, table, translated
from analysis.report.language.sentences import TEMPLATES
from analysis.report.opening.answer import answer
from analysis.report.opening.front import drawable, svg
from analysis.report.opening.label_room import Room
from analysis.report.opening.marks import mark
from analysis.report.pages import html
from analysis.rows.comparing.comparisons import Comparison, comparisons
from analysis.rows.reading import Row, read
from analysis.statistics.answers import MARGIN
from analysis.tables.formats import Table
from tests.analysis.planted_rows import died, fair

ROWS = Path(__file__).parents[3] / "results" / "reference" / "fresh_weights" / "bar.jsonl"
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(read(ROWS).rows)


def judged(rows: list[Row]) -> tuple[Comparison, list[tuple[str, str]], list[str]]:
    comparison = comparisons(rows)[0]
    found = answer(comparison, findings_of(comparison, rows), "these")
    return comparison, [(one.label, one.status) for one in found.arms], list(found.sentences)


def test_the_paragraph_and_claim_have_one_verdict(rows: list[Row]) -> None:
    without_16_bits = [row for row in rows if row["compress_method"] != "bf16"]
    seen = set()
    for some in (rows, without_16_bits):
        comparison, statuses, sentences = judged(some)
        for label, status in statuses:
            if status == "baseline":
                continue
            said = claim(comparison, label, 1e9, MARGIN, some)
            assert (status == "unfair") == (not said.is_fair), label
            assert said.holds or status != "holds", label
            seen.add(status)
    assert {"holds", "unfair", "undecided"} <= seen
    assert "So none is recommended here." in sentences  # without 16 bits to compare with, nothing is claimed


def test_an_arm_with_a_lost_run_is_not_recommended() -> None:
    rows = [died("int8", 3) if (row["compress_method"], row["seed"]) == ("int8", 3) else row for row in fair()]
    _, statuses, sentences = judged(rows)
    (status,) = {status for label, status in statuses if label.startswith("int8")}
    assert status in ("failed", "unfair")
    assert not any(sentence.startswith("Fewest bits among them: int8") for sentence in sentences)


def test_names_are_no_markup_in_the_first_figure(rows: list[Row], tmp_path: Path) -> None:
    comparison = comparisons(rows)[0]
    evil = '</svg><script>alert("1")</script>'
    arms = [
        replace(one, line=replace(one.line, runs=replace(one.line.runs, arm=replace(one.line.runs.arm, name=evil))))
        for one in answer(comparison, [], "these").arms
    ]
    drawn = svg(drawable(arms), 800, 400, evil, str, evil)
    page = html.render(
        Document(evil, [Section("answer", evil, [Front("front", drawn, drawn, evil, evil)])]), tmp_path, ["svg"]
    )
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert "&lt;script&gt;" in page


def test_holes_of_both_languages_are_the_same() -> None:
    for english, chinese in TEMPLATES.items():
        holes = re.findall(r"{(\w+)}", english)
        assert sorted(holes) == sorted(re.findall(r"{(\w+)}", chinese)), english
        assert len(holes) == len(set(holes)), english


def test_verdicts_notes_and_cells_are_translated_and_names_are_not() -> None:
    assert say("fair: 3 seeds, same tokens, bf16 and fp32 baselines (to note: mixed versions)", "zh") == (
        "公平：3 个种子，词元相同，有 bf16 与 fp32 基线（注意：版本不一）"
    )
    assert say("NOT FAIR: missing runs (a, b)", "en").startswith("NOT FAIR")
    made = table(Table("t, against none", ["arm", "bar"], [["yes", "no: ratio"]]))
    assert (made.title, list(made.heads), made.rows[0]) == ("t，相对 none", ["方法", "门槛"], ["yes", "否：压缩比不足"])
    note = "gpt2, 2 ranks: one seed, so no interval: int8. Run 5 seeds or more [one_seed] Likewise: other"
    whole = Document("t", [Section("a", "The answer", [Notes([("error", note)]), Text("None.")])])
    section = translated(whole, "zh").sections[0]
    notes, text = section.blocks
    assert section.title == "结论"
    assert isinstance(notes, Notes)
    assert "只有一个种子，因此没有区间：int8。请运行至少 5 个种子。[one_seed]" in notes.notes[0][1]
    assert text == Text("无。")


def test_room_covers_no_mark_and_no_other_name() -> None:
    room = Room((0, 0, 200, 40), [(20, 20)])
    assert room.take((20, 20), 100, 13) is not None
    assert room.take((20, 20), 170, 13) is None


def test_every_marker_is_a_closed_path() -> None:
    for marker in "osDdhHp8^v<>*PXx?":
        assert re.fullmatch(r"M[-\d. aLz]+z", mark(marker, 10, 10, 5))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_runs_the_page(rows: list[Row], tmp_path: Path) -> None:
    comparison = comparisons(rows)[0]
    drawn = svg(drawable(answer(comparison, [], "these").arms), 800, 400, "none", str, "title")
    cells = Table("t", ["arm", "bits"], [[f"arm {i}", str(i)] for i in range(9)])
    first = Section("answer", "The answer", [Front("front", drawn, drawn, "title", "about"), cells])
    file = tmp_path / "index.html"
    file.write_text(html.render(Document("t", [first]), tmp_path, ["svg"]))
    flags = ["--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=2000", file.as_uri()]
    done = subprocess.run([str(BROWSER), *flags], capture_output=True, text=True, timeout=120, check=True)
    assert re.search(r'<button type="button">bits</button>', done.stdout)
    assert re.search(r'<input type="search"', done.stdout)
    assert '<button type="button" aria-pressed="false">int8</button>' in done.stdout
