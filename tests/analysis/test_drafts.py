"""Drafts are judged by their acceptance length, apart from language models, and what is lost is infinitely bad."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from analysis import drafts
from analysis.checks import fairness
from analysis.checks.__main__ import main
from analysis.drafts import HEADS, acceptance_table
from analysis.figures import acceptance as figure
from analysis.figures.drawing.style import Style
from analysis.report import __main__ as report_program
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.quality import loss_of
from analysis.rows.reading import Row, read
from analysis.statistics.acceptance import Line, lines
from analysis.tables import comparison as tables
from tests.analysis import planted_rows
from tests.analysis.planted_drafts import arm, died, fair, row
from tests.analysis.planted_rows import write

T = 4.302653  # Student's t for 2 degrees of freedom at 97.5 %


def by_label(rows: list[Row]) -> dict[str, Line]:
    (comparison,) = comparisons(rows)
    return {line.label: line for line in lines(comparison)}


def test_means_and_paired_differences_are_those_planted() -> None:
    found = by_label([*fair(), *arm("topk", parameters="none")])
    assert list(found) == ["none", "topk", "bf16 + bf16", "int8 + int8", "int4 + int4"], "by falling bits"
    none, int8 = found["none"], found["int8 + int8"]
    assert (none.tau.mean, none.change) == (pytest.approx(1.5), None)
    assert none.tau.half == pytest.approx(T * 0.1 / math.sqrt(3))
    assert int8.tau.mean == pytest.approx(1.48)
    assert int8.change is not None
    half = T * 0.01 / math.sqrt(3)  # the seeds' luck is in no difference
    assert (int8.change.mean, int8.change.low, int8.change.high) == (
        pytest.approx(-0.02),
        pytest.approx(-0.02 - half),
        pytest.approx(-0.02 + half),
    )
    assert (int8.bits_gradients, int8.bits_parameters, int8.bits) == (8.0, 16.0, 24.0)
    assert (found["topk"].bits_gradients, found["topk"].bits_parameters) == (8.0, 64.0)
    assert (int8.ratio_fp32, int8.ratio_bf16) == (4.0, 2.0)


def test_what_failed_or_is_missing_is_infinitely_bad() -> None:
    rows = [*fair(), row("topk", 1), died("topk", 2), died("topk", 3), row("qsgd", 1), row("qsgd", 2)]
    found = by_label(rows)
    topk, qsgd = found["topk + topk"], found["qsgd + qsgd"]
    assert topk.tau.mean == -math.inf
    assert topk.tau.low is None
    assert topk.change is not None
    assert (topk.change.mean, topk.change.lost) == (-math.inf, (2, 3))
    assert qsgd.tau.mean == pytest.approx(1.45)
    assert qsgd.change is not None
    assert (qsgd.change.mean, qsgd.change.lost) == (-math.inf, (3,)), "one is missing"
    cells = dict(zip(HEADS, next(r for r in table(rows) if r[0] == "topk + topk"), strict=True))
    assert [cells[name] for name in ("tau", "change", "seeds", "failed")] == ["-∞", "lost: seed 2, 3", "3", "2"]
    base = by_label([died("none", 1), row("none", 2), *arm("int8")])["int8 + int8"].change
    assert base is not None
    assert (base.seeds, base.unpaired, base.mean, base.low) == ((2,), (1,), 0.0, None)


def table(rows: list[Row]) -> list[list[str]]:
    return [list(line) for line in acceptance_table(comparisons(rows)[0], []).rows]


def test_the_table_says_it() -> None:
    made = acceptance_table(comparisons(fair())[0], fairness.findings(fair()))
    half = T * 0.01 / math.sqrt(3)
    assert made.rows[2] == [
        *("int8 + int8", "8.00", "16.00", "24.00", "4.00x", "2.00x"),
        f"1.480 (sd 0.090), 95 % [{1.48 - T * 0.09 / math.sqrt(3):.3f}, {1.48 + T * 0.09 / math.sqrt(3):.3f}]",
        f"-0.020 [{-0.02 - half:+.3f}, {-0.02 + half:+.3f}]",
        *("3", "-"),
    ]
    assert made.title == "draft of a/target, 2 ranks, 100 steps, against none"
    assert made.note == "fair: 3 seeds, same tokens, bf16 and fp32 baselines"


def test_the_figure_has_every_arm_where_it_belongs() -> None:
    rows = [*fair(), row("topk", 1), died("topk", 2), *arm("qsgd", (0.1, 0.1, 0.1), parameters="none")]
    found = {point.label: point for point in figure.points(comparisons(rows)[0])}
    assert (found["int8 + int8"].bits, found["int8 + int8"].tau) == (24.0, pytest.approx(1.48))
    assert (found["topk + topk"].tau, found["topk + topk"].lost, found["topk + topk"].runs) == (-math.inf, 2, 3)
    assert [label for label, point in found.items() if point.is_hollow] == [
        *("bf16 + bf16", "int8 + int8", "topk + topk", "int4 + int4")
    ]
    drawn = figure.draw(list(found.values()), Style(), "the foot")
    (axes,) = drawn.axes
    marks = {
        line.get_label(): line
        for line in axes.lines
        if str(line.get_label()).startswith("_") and line.get_label()[1:] in found
    }
    assert len(marks) == len(found)
    assert float(marks["_int4 + int4"].get_ydata()[0]) == pytest.approx(1.29)
    assert float(marks["_topk + topk"].get_ydata()[0]) < 1.25, "in the band below all others"
    named = [text.get_text() for text in axes.texts]
    assert "topk + topk (2/3)" in named
    spans = {line.get_xdata()[0]: list(line.get_ydata()) for line in axes.lines if line.get_gid() == "interval"}
    half = T * 0.01 / math.sqrt(3)  # of the differences to the baseline, which has no bar itself
    assert 96.0 not in spans
    assert spans[12.0] == pytest.approx([1.29 - half, 1.29 + half])
    assert "the foot" in drawn.get_supxlabel()
    with pytest.raises(ValueError, match="has no two arms"):
        figure.points(comparisons(arm("none"))[0])
    with pytest.raises(ValueError, match="has no baseline"):
        figure.points(comparisons(arm("int8"))[0])


def test_language_models_and_drafts_are_never_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, of_drafts = planted_rows.fair(), fair()
    path = write(tmp_path / "rows.jsonl", [*models, *of_drafts])
    found = read(path)
    assert (len(found.rows), len(found.drafts), found.left_out) == (len(models), len(of_drafts), [])
    assert len(comparisons([*found.rows, *found.drafts])) == 2
    assert tables.main([str(path)]) == 0
    said = capsys.readouterr()
    assert "draft" not in said.out
    assert f"{len(of_drafts)} rows are of drafts: fsdp-lab drafts reads those" in said.err
    assert drafts.main([str(path), "--markdown", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "gpt2-nano" not in said.out
    assert "| int8 + int8 | 8.00 |" in said.out
    assert "int8 + int8" in (tmp_path / "out" / "drafts.md").read_text()
    assert (tmp_path / "out" / "tau_against_bytes.svg").exists()
    for program, rows, kind in ((tables, of_drafts, "language model"), (drafts, models, "draft")):
        with pytest.raises(SystemExit):
            program.main([str(write(tmp_path / "one.jsonl", rows))])
        assert f"holds no row of a {kind}" in capsys.readouterr().err


def test_fairness_compares_drafts_by_their_own_quality(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert loss_of(row(lost=0.0)) == pytest.approx(-math.log(1.4))
    better = fairness.findings([*arm("none"), *arm("bf16"), *arm("int8", (-0.1, -0.1001, -0.1002))])
    (finding,) = [f for f in better if f.check == "better_than_uncompressed"]
    assert "passes a token -6." in finding.what
    other = [*fair(), row("qsgd", 1, data_digest="another"), row("qsgd", 2), row("qsgd", 3)]
    assert "data_digest differs among the runs of seed 1" in next(
        f.what for f in fairness.findings(other) if f.check == "other_stream"
    )
    fewer = [*fair(), row("qsgd", 1, tau_prompts=16), row("qsgd", 2), row("qsgd", 3)]
    assert any("tau_prompts differs" in f.what for f in fairness.findings(fewer))
    assert main([str(write(tmp_path / "rows.jsonl", other))]) == 1
    assert "draft of a/target, 2 ranks, 100 steps: data_digest differs" in capsys.readouterr().out


@pytest.mark.parametrize("models", [[], planted_rows.fair()], ids=["drafts alone", "beside language models"])
def test_a_report_shows_them(models: list[Row], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [*models, *fair()])
    assert report_program.main([str(path), "--out", str(tmp_path / "report"), "--formats", "svg"]) == 0
    page = (tmp_path / "report" / "report.md").read_text()
    assert "draft of a/target, 2 ranks, 100 steps, against none" in page
    assert "Acceptance length against bytes" in page
    assert (tmp_path / "report" / "draft-of-a-target-2-ranks-100-steps-acceptance_length.svg").exists()
    assert ("gpt2-nano, 2 ranks, 100 steps, against none" in page) == bool(models)
