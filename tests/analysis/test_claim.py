"""A claim is granted when everything speaks for it, and denied for each single thing that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.checks.fairness import findings_of, is_unfair, verdict
from analysis.checks.finding import QUALITY_AND_BYTES
from analysis.claim import claim, main
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from tests.analysis.planted_rows import SEEDS, arm, diverged, fair, row, write
from tests.analysis.planted_unfair import PLANTED

INT8 = "int8 + int8"  # 24 bits; 0.05 %, 0.10 % and 0.15 % worse


def judged(tmp_path: Path, rows: list[Row], bits: float, margin: float, label: str = INT8) -> int:
    file = write(tmp_path / "rows.jsonl", rows)
    return main([str(file), "--arm", label, "--bits", str(bits), "--margin", str(margin)])


def test_a_true_claim_is_granted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(tmp_path, fair(), 24, 0.5) == 0
    said = capsys.readouterr().out
    assert said.startswith("int8 + int8: 24 bits or fewer within 0.5 % of none's PPL?")
    assert "pairs        3" in said
    assert "0.249 % wide, claim 0.5 %: narrower" in said
    assert said.endswith("yes\n")


def test_the_arm_and_the_baseline_are_understood_however_they_are_spelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(tmp_path / "rows.jsonl", fair()))
    main(
        [file, "--arm", "int8+int8, prefetch 1", "--baseline", "identity  +identity", "--bits", "24", "--margin", "0.5"]
    )
    assert capsys.readouterr().out.startswith(
        "int8 + int8: 24 bits or fewer within 0.5 % of identity + identity's PPL?"
    )


def test_each_thing_that_is_missing_denies_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def denied(rows: list[Row], bits: float, margin: float, why: str) -> None:
        assert judged(tmp_path, rows, bits, margin) == 1
        said = capsys.readouterr().out
        assert why in said
        assert said.endswith("no\n")

    others = [r for r in fair() if r["compress_method"] != "int8"]
    denied(fair(), 23.9, 0.5, "24.000 (the run that sent most): no")
    denied(fair(), 24, 0.15, ": undecided")
    denied(fair(), 24, 0.24, "0.249 % wide, claim 0.24 %: not narrower")  # although the bound lies below it
    denied([*others, *arm("int8", 0.02)], 24, 1, ": worse")
    denied([*others, row("int8", 1), row("int8", 2), diverged("int8", 3)], 24, 50, "lost: seed 3")
    denied([*others, row("int8", 1), row("int8", 2)], 24, 50, "lost: seed 3")
    denied([r for r in fair() if r["seed"] == 1], 24, 50, "[one_seed]")
    denied([*others, *arm("int8", tokens_seen=5)], 24, 50, "[different_tokens]")
    denied([*others, *arm("int8", bytes_trusted=False)], 24, 50, "[untrusted_bytes]")
    denied([*others, *arm("int8", num_parameters=1)], 24, 50, "bits         ")
    varying = [row("int8", s, num_parameters=n) for s, n in zip(SEEDS, (10**6, 10**6, 990_000), strict=True)]
    denied([*others, *varying], 24, 50, "24.242 (the run that sent most): no")


def test_what_the_report_calls_unfair_is_no_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without bf16 there is nothing that anybody would have instead; that times are unfair matters to neither."""
    without_bf16 = [r for r in fair() if r["compress_method"] != "bf16"]
    assert judged(tmp_path, without_bf16, 24, 0.5) == 1
    said = capsys.readouterr().out
    assert "  verdict      NOT FAIR: no 16 bit baseline\n" in said
    assert "run bf16 + bf16 with the same settings [no_16_bit_baseline]" in said
    without_identity = [r for r in fair() if r["compress_method"] != "identity"]
    assert judged(tmp_path, without_identity, 24, 0.5) == 0
    assert "  verdict      fair: 3 seeds, same tokens, bf16 and fp32 baselines\n" in capsys.readouterr().out


def test_a_ratio_against_bf16_needs_bf16_on_the_same_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [r for r in fair() if (r["compress_method"], r["seed"]) != ("bf16", 3)]
    assert judged(tmp_path, rows, 24, 0.5) == 1
    said = capsys.readouterr().out
    assert "bf16 + bf16 has no finished run with seeds that others are compared over: int8 + int8 (seed 3)" in said
    assert judged(tmp_path, [*rows, diverged("bf16", 3)], 24, 0.5) == 1


def test_seeds_that_another_arm_lacks_are_its_own_affair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report names the arm that lacks runs, and calls the others fair; so does the claim of each."""
    rows = [r for r in fair() if (r["compress_method"], r["seed"]) != ("int4", 3)]
    assert judged(tmp_path, rows, 24, 0.5) == 0
    assert judged(tmp_path, rows, 24, 50, "int4 + int4") == 1
    assert "NOT FAIR: missing runs" in capsys.readouterr().out
    comparison = comparisons(rows)[0]
    assert verdict(findings_of(comparison, rows), comparison, QUALITY_AND_BYTES) == (
        "NOT FAIR: missing runs (int4 + int4); else fair: 3 seeds, same tokens, bf16 and fp32 baselines "
        "(to note: few seeds)"
    )


@pytest.mark.parametrize("what", PLANTED)
def test_claim_and_report_never_disagree(what: str) -> None:
    """Whatever is planted: the claim's verdict is the figure's, and each of its reasons is one of the report's."""
    _, _, rows = PLANTED[what]
    kept = [r for r in rows if r["compress_method"] != "int4"]
    comparison = comparisons(kept)[0]
    if comparison.baseline is None:
        return
    found = findings_of(comparison, kept)
    made = claim(comparison, INT8, 24, 0.5, kept)
    assert made.is_fair != is_unfair(verdict(found, comparison, QUALITY_AND_BYTES))
    assert set(made.held_against) <= set(found)
    assert is_unfair(made.verdict) != made.is_fair


def test_what_concerns_others_does_not_matter(tmp_path: Path) -> None:
    elsewhere = arm("int4", 0.05, bytes_trusted=False, parameters="none")
    rows = [r for r in fair() if r["compress_method"] != "int4"]
    assert judged(tmp_path, [*rows, *elsewhere], 24, 0.5) == 0
    together = [Row({**r, "wall_time_s": 1e5}) for r in rows]  # times, of which the claim says nothing
    assert judged(tmp_path, together, 24, 0.5) == 0


def test_mistakes_are_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rows, label, bits, why in (
        (fair(), "int9", 1.0, "no arm 'int9'"),
        (fair(), "none", 1.0, "is the baseline itself"),
        (arm("int8"), INT8, 1.0, "no baseline in the comparison"),
        (fair(), INT8, 0.0, "wants a number, above 0"),
    ):
        with pytest.raises(SystemExit) as stop:
            judged(tmp_path, rows, bits, 1.0, label)
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert why in line


def test_the_largest_comparison_is_judged_and_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judged(tmp_path, [*fair(), *arm("none", world_size=4), *arm("int8", 0.1, world_size=4)], 24, 0.5) == 0
    assert "the largest of 2 comparisons" in capsys.readouterr().err
