"""Tables say what was planted, in an order and a form that a reader and LaTeX can take."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from analysis.checks.fairness import findings
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from analysis.statistics.answers import Line, lines, what_is_missing
from analysis.statistics.intervals import Paired, Summary
from analysis.tables.changes import change_text, ppl_digits, summary_text
from analysis.tables.comparison import HEADS, answer_table, comparison_table, main
from analysis.tables.formats import Table, latex_escaped
from tests.analysis.planted_rows import SEEDS, arm, died, diverged, fair, row, write

EVERYTHING = [
    *fair(),
    *[row("qsgd", s, worse, parameters="none") for s, worse in zip(SEEDS, (0.02, -0.01, 0.01), strict=True)],
    row("topk", 1),
    diverged("topk", 2),
    died("topk", 3),
]


def by_label(rows: list[Row], **options: Any) -> dict[str, Line]:
    return {line.label: line for line in lines(comparisons(rows)[0], **options)}


def test_the_baseline_comes_first_and_then_the_ratio() -> None:
    table = comparison_table(comparisons(EVERYTHING)[0], findings(EVERYTHING))
    cells = {line[0]: dict(zip(HEADS, line, strict=True)) for line in table.rows}
    labels = ["none", "identity + identity", "qsgd", "bf16 + bf16", "int8 + int8", "topk + topk", "int4 + int4"]
    assert list(cells) == labels
    assert table.note == "fair: 3 seeds, same tokens, bf16 and fp32 baselines"
    assert cells["none"] | {"PPL": "?"} == dict(
        zip(
            HEADS,
            ["none", "1.00x", "1.00x", "0.50x", "96.00", "10,000 (sd 0)", "25.0 %", "?", "-", "-", "3", "-"],
            strict=True,
        )
    )
    int4 = cells["int4 + int4"]
    assert [int4[name] for name in ("all, fp32", "all, bf16", "bits", "bar")] == ["8.00x", "4.00x", "12.00", "no: PPL"]
    # 0.052 +- 4.303 x 0.002 / sqrt(3) nats
    low, high = (100 * math.expm1(0.052 + sign * 4.30265 * 0.002 / math.sqrt(3)) for sign in (-1, 1))
    assert int4["change"] == f"{100 * math.expm1(0.052):+.2f} % [{low:+.2f}, {high:+.2f}]"
    topk = cells["topk + topk"]
    assert [topk[n] for n in ("PPL", "change", "bar", "failed")] == ["∞", "lost: seed 2, 3", "no: failed", "2"]


def test_who_holds_the_bar() -> None:
    found = {label: line.bar for label, line in by_label(EVERYTHING).items()}
    assert found == {
        "none": "baseline",
        "identity + identity": "no: ratio",
        "qsgd": "no: ratio",  # gradients alone: 1.33 of all traffic
        "bf16 + bf16": "holds, fp32 only",
        "int8 + int8": "holds",
        "topk + topk": "no: failed",
        "int4 + int4": "no: PPL",
    }
    noisy = [row("int8", s, worse) for s, worse in zip(SEEDS, (0.02, -0.01, 0.0), strict=True)]
    assert by_label([*arm("none"), *noisy])["int8 + int8"].bar == "undecided"
    assert by_label([*arm("none"), *arm("int8", seeds=(1, 2))])["int8 + int8"].bar == "no: failed"  # one is missing
    assert by_label([*arm("none"), *arm("int8", seeds=(1, 2))], shared_seeds=True)["int8 + int8"].bar == "holds"
    assert (
        by_label([*arm("none"), row("int8", 1), died("int8", 2)], shared_seeds=True)["int8 + int8"].bar == "no: failed"
    )
    assert by_label(arm("int8"))["int8 + int8"].bar == "unknown"


def test_what_is_missing_is_said() -> None:
    said = {label: what_is_missing(line) for label, line in by_label(EVERYTHING).items()}
    assert said["int8 + int8"] == said["bf16 + bf16"] == ""
    assert said["topk + topk"] == "diverged: its loss is not finite; failed: rank 1 died"
    assert re.fullmatch(r"PPL at least 4\.98 % worse", said["int4 + int4"])
    assert said["qsgd"].startswith("compress the other direction, too; PPL may be")
    assert said["identity + identity"] == "sends too much"
    one = by_label([row("none"), row("int8")])["int8 + int8"]
    assert what_is_missing(one) == "two paired seeds or more"


def test_the_front_takes_chance_into_account() -> None:
    base = [*arm("none"), *arm("int8", 0.01)]  # 24 bits
    noise = (-0.012, 0.0, 0.015)
    alike = [row("fp8", s, 0.012 + w) for s, w in zip(SEEDS, noise, strict=True)]  # 24 bits, a little worse, by chance
    worse = [row("nc", s, 0.5 + w) for s, w in zip(SEEDS, noise, strict=True)]
    better = arm("int4", 0.1)  # 12 bits, better than nc
    found = by_label([*base, *alike, *worse, *better, diverged("onebit", 1)])
    assert {label: (line.front, line.beaten_by) for label, line in found.items()} == {
        "none": ("yes", None),
        "int8 + int8": ("yes", None),
        "fp8 + fp8": ("perhaps", "int8 + int8"),
        "nc + nc": ("no", "int8 + int8"),
        "int4 + int4": ("yes", None),
        "onebit + onebit": ("-", None),
    }


def test_an_equal_arm_with_more_bits_is_beaten() -> None:
    found = by_label([*arm("none"), *arm("int8"), *arm("int4")])
    assert [line.front for line in found.values()] == ["perhaps", "perhaps", "yes"]


def test_answers_are_sorted_by_what_they_say() -> None:
    table = answer_table(comparisons(EVERYTHING)[0])
    assert table.title.endswith("2 of 6 arms hold the bar (ratio 2 or more, PPL within 1 %)")
    assert [line[0] for line in table.rows] == [
        "int8 + int8",
        "bf16 + bf16",
        "int4 + int4",
        "qsgd",
        "identity + identity",
        "topk + topk",
    ]


def test_a_small_perplexity_has_more_decimal_places() -> None:
    """Four digits: 1.7 would hide a change of two percent."""
    shown = {1.745: 3, 9.87: 3, 14.62: 2, 99.9: 2, 133.9: 1, 12345.6: 1, 1.0: 3, math.inf: 1, math.nan: 1, 0.0: 1}
    assert {ppl: ppl_digits(ppl) for ppl in shown} == shown


def test_cells() -> None:
    assert summary_text(Summary(1, 789.47), 1) == "789.5"
    assert summary_text(Summary(3, 107.21, 1.06, 106.14, 108.33), 1) == "107.2 (sd 1.1), 95 % [106.1, 108.3]"
    assert summary_text(Summary(3, math.inf), 1) == "∞"
    assert summary_text(Summary(3, -math.inf), 1) == "-∞"
    assert change_text(Paired(1, 0.0123), 2, percent=True) == "+1.23 %"
    assert change_text(Paired(2, 0.0123, low=-0.001, high=0.02), 2, percent=True) == "+1.23 % [-0.10, +2.00]"
    assert change_text(Paired(2, -0.0123, low=-0.02, high=0.001), 3) == "-0.012 [-0.020, +0.001]"
    assert change_text(Paired(2, 0.5, low=0.1, high=0.9, lost=(1, 3)), 3) == "lost: seed 1, 3"
    assert change_text(None, 2) == change_text(Paired(0, None), 2) == "-"


SAMPLE = Table("50 % of a_b & c", ("arm", "x"), [["topk {ratio=1%}", "-3.5x"], ["a|b", "1 ± 2"]], "note #1", (0,))


def test_text_and_markdown() -> None:
    lines_of_text = SAMPLE.text().splitlines()
    assert lines_of_text[2:5] == ["arm                  x", "topk {ratio=1%}  -3.5x", "a|b              1 ± 2"]
    assert lines_of_text[-1] == "note #1"
    assert SAMPLE.markdown().splitlines()[2:6] == [
        "| arm | x |",
        "|---|---:|",
        "| topk {ratio=1%} | -3.5x |",
        r"| a\|b | 1 ± 2 |",
    ]


def unescaped(latex: str) -> str:
    """What is left when everything that is escaped is taken out."""
    return re.sub(r"\\[&%$#_{}]", "", latex)


def well_formed(latex: str, columns: int) -> None:
    bare = unescaped(latex)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not set("%#_~^<>|±∞") & set(bare)
    for environment in ("table", "tabular"):
        assert latex.count(rf"\begin{{{environment}}}") == latex.count(rf"\end{{{environment}}}") == 1
    body = latex[latex.index(r"\toprule") : latex.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert all(unescaped(line).count("&") == columns - 1 for line in rows)


def test_latex_is_well_formed() -> None:
    well_formed(SAMPLE.latex(), 2)
    assert r"topk \{ratio=1\%\} & $-$3.5$\times$ \\" in SAMPLE.latex()
    assert r"\caption{50 \% of a\_b \& c}" in SAMPLE.latex()
    comparison = comparisons(EVERYTHING)[0]
    well_formed(comparison_table(comparison, findings(EVERYTHING)).latex(), len(HEADS))
    well_formed(answer_table(comparison).latex(), 5)


@given(text=st.text(alphabet="ab1-x\\&%$#_{}~^<>|±∞ ", max_size=30))
def test_any_text_can_be_escaped(text: str) -> None:
    bare = unescaped(latex_escaped(text))
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not set("&%#_~^<>|±∞") & set(bare)


@pytest.mark.parametrize("flags", [[], ["--markdown"], ["--latex"]])
def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    file = write(tmp_path / "rows.jsonl", [*EVERYTHING, *arm("none", world_size=4), *arm("int8", world_size=4)])
    assert main([str(file), *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("hold the bar") == 2
    assert out.index("2 ranks") < out.index("4 ranks")
    assert main([str(file), "--select", "world_size=4", "--baseline", "int8", *flags]) == 0
    assert "against int8 + int8" in capsys.readouterr().out


def test_mistakes_are_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", fair())
    for flags, why in ((["--select", "seed=7"], "they have 1, 2, 3"), (["--select", "seed"], "wants COLUMN=VALUE")):
        with pytest.raises(SystemExit) as stop:
            main([str(file), *flags])
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert why in line
