"""Every way of being unfair that we know is planted and found, by its own check and no other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from analysis.checks.comparing.table import CHECKS
from analysis.checks.fairness import findings, findings_of, overall, verdict
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row, read
from analysis.tables.comparison import answer_table, comparison_table
from tests.analysis.planted_rows import SEEDS, arm, died, diverged, divided, fair, row, write
from tests.analysis.planted_unfair import ALSO, BEFORE, CLEAN, NAN, PLANTED, TUNED, but, local, without


def test_activations_are_compared_with_activations_in_16_bits() -> None:
    alone = [divided(method, seed) for method in ("none", "int8") for seed in SEEDS]
    (found,) = findings(alone)
    assert (found.check, found.severity) == ("no_16_bit_baseline", "error")
    assert "no arm carries activations in 16 bits" in found.what
    assert findings([*alone, *(divided("bf16", seed) for seed in SEEDS)]) == []


@pytest.mark.parametrize("what", PLANTED)
def test_what_was_planted_is_found_and_nothing_else(what: str) -> None:
    severity, check, rows = PLANTED[what]
    found = findings(rows)
    assert {(f.severity, f.check) for f in found} == {(severity, check)} | ALSO.get(what, set()), found
    line = verdict(found, comparisons(rows)[0])
    assert line.startswith("NOT FAIR: ") == any(f.severity == "error" for f in found)
    assert check.replace("_", " ") in line


def test_every_check_has_been_planted() -> None:
    of_a_chart = {"other_tuning_seeds"}  # needs rows of tuning beside those that judge: tests/analysis/chart
    assert {check.__name__ for check in CHECKS} - of_a_chart <= {check for _, check, _ in PLANTED.values()}


def test_what_is_fair_is_not_accused() -> None:
    assert findings(fair()) == []
    assert findings(TUNED) == []  # the same three candidates for all
    assert (
        findings([*fair()[:12], row("int4", 1), died("int4", 2), diverged("int4", 3)]) == []
    )  # failing is no cheating
    on_gpus = [Row({**r, "backend": "nccl"}) for r in without("identity")]
    assert findings(on_gpus) == []  # stock collectives are as good as ours there
    assert findings([*fair(), *fair()]) == []  # a file read twice
    both = [*local(1, "diloco"), *local(2, "diloco", outer_momentum=0.3), *local(3, "local_sgd")]
    outer = [*both, *local(4, "local_sgd", outer_momentum=0.3)]
    assert findings([*fair(), *outer]) == []  # two outer momenta for both
    assert findings(arm("int8", seeds=(1,))) == []  # one arm is no comparison
    assert findings([died("int8", 1, **BEFORE, status="preempted"), *fair()]) == []  # stopped, and run again
    together = [Row({**r, "wall_time_s": 1e5, "step_time_ms_p50": None}) for r in fair()]
    assert findings(together) == []  # virtual ranks: nothing was timed
    conversations = [Row({**r, "tokens_seen": 1000 + r["seed"]}) for r in fair()]
    assert findings(conversations) == []  # another order fills other batches
    stock_16 = [Row({**r, "param_dtype": "bf16"}) for r in arm("none", comm_dtype="bf16")]
    assert findings([*without("bf16"), *[Row({**r, "time_utc": "2027" + r["time_utc"][4:]}) for r in stock_16]]) == []


def test_runs_that_a_setting_keeps_from_the_baseline_are_named() -> None:
    (found,) = findings([*fair(), died("int8", 1, max_length=64, **BEFORE)])
    assert (found.check, found.severity) == ("alone", "warning")
    assert found.what == "compared with no baseline (int8 + int8), because of max_length 64, not 128"


STRANGE: list[Any] = [None, True, False, 0, -1, 3.5, NAN, float("inf"), 1e308, 10**400, "", "x", [], ["val_loss"], [1]]
STRANGE += [{}, {"a": None}, {"reduce_scatter": 0, "all_gather": 0}, {"reduce_scatter": 1e308, "all_gather": "x"}]


def test_no_row_makes_it_fail(tmp_path: Path) -> None:
    generator = random.Random(6)
    for _ in range(150):
        spoilt = []
        for found in fair()[::2]:
            values = {**found, "config": dict(found["config"])}
            for place in generator.choices([values, values["config"]], k=generator.randint(0, 2)):
                place[generator.choice(sorted(place))] = generator.choice(STRANGE)
            spoilt.append(Row(values))
        there = read(write(tmp_path / "spoilt.jsonl", spoilt))
        assert len(there.rows) + len(there.left_out) == len(spoilt)
        findings(there.rows)
        for comparison in comparisons(there.rows):
            assert comparison_table(comparison, findings_of(comparison, there.rows)).latex()
            assert answer_table(comparison).text()


def test_findings_of_a_figure_concern_its_own_rows() -> None:
    elsewhere = arm("int8", world_size=4, bytes_trusted=False)
    one, other = comparisons([*fair(), *elsewhere])
    assert findings_of(one, [*fair(), *elsewhere]) == findings_of(one, fair())
    assert [f.check for f in findings_of(other, elsewhere)] == ["untrusted_bytes"] * 3


def test_runs_overlap_with_those_of_other_comparisons_too() -> None:
    rows = fair()
    stranger = row("int8", 1, world_size=4, run_name="stranger", time_utc=rows[0]["time_utc"])
    found = findings_of(comparisons(rows)[0], [*rows, stranger])
    assert [(f.check, f.what) for f in found] == [
        ("overlapping_runs", "1 runs shared their machine with another: none-none-1 with stranger")
    ]
    far = Row({**stranger, "hardware": CLEAN | {"host": "else"}})
    assert findings_of(comparisons(rows)[0], [*rows, far]) == []


def test_runs_one_after_another_do_not_overlap() -> None:
    assert findings([Row({**r, "wall_time_s": 3601.0}) for r in fair()]) == []  # times are written in whole seconds
    assert [f.check for f in findings([Row({**r, "wall_time_s": 3605.0}) for r in fair()])] == ["overlapping_runs"]


def test_verdicts() -> None:
    def line(rows: list[Row], concerns: Any = None) -> str:
        return verdict(findings(rows), comparisons(rows)[0], concerns)

    assert line(fair()) == "fair: 3 seeds, same tokens, bf16 and fp32 baselines"
    assert line([r for r in without("bf16") if r["seed"] == 1]) == "NOT FAIR: one seed; no 16 bit baseline"
    assert (
        line([r for r in fair() if r["seed"] == 1], ["times"]) == "fair: 1 seed, same tokens, bf16 and fp32 baselines"
    )
    assert line(but("int8", git_dirty=True)) == (
        "fair: 3 seeds, same tokens, bf16 and fp32 baselines (to note: dirty checkout)"
    )
    assert line(without("bf16", "int8", "int4")) == "fair: 3 seeds, same tokens, fp32 baseline"
    overlapping = PLANTED["at the same time"][2]
    assert line(overlapping) == (
        "NOT FAIR: overlapping runs (int8 + int8); else fair: 3 seeds, same tokens, bf16 and fp32 baselines"
    )
    assert overall(findings(overlapping), comparisons(overlapping)[0]) == (
        "quality and bytes fair: 3 seeds, same tokens, bf16 and fp32 baselines; times NOT FAIR: overlapping runs "
        "(int8 + int8); else fair: 3 seeds, same tokens, bf16 and fp32 baselines"
    )
    assert overall(findings(fair()), comparisons(fair())[0]) == line(fair())
    assert line(overlapping, ["quality", "bytes"]).startswith("fair")
    assert line(arm("int8")) == "one arm only: nothing is compared"
    assert verdict([]) == "fair: no error found"
    everything = [f for _, _, rows in PLANTED.values() for f in findings(rows)]
    assert len(verdict(everything)) < 260
    assert "more" in verdict(everything)
