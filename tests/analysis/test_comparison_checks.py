"""Every way of being unfair that we know is planted and found, by its own check and no other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from analysis.arms import comparisons
from analysis.comparison_checks import CHECKS
from analysis.fairness import findings, findings_of, verdict
from analysis.rows import Row, read
from analysis.tables import answer_table, comparison_table
from tests.analysis.planted_rows import SEEDS, arm, died, diverged, fair, row, write

NAN = float("nan")
CLEAN = {"cpu": "a CPU", "cores": 2, "ram_gb": 8.0, "gpus": [], "host": "0123456789ab"}


def but(method: str, **changes: Any) -> list[Row]:
    """The fair rows, those of one method changed."""
    parameters = method if method != "none" else "none"
    kept = [r for r in fair() if r["compress_method"] != method]
    worse = {"none": 0.0, "identity": 0.0, "bf16": 0.0001, "int8": 0.01, "int4": 0.05}[method]
    return [*kept, *arm(method, worse, parameters=parameters, **changes)]


def without(*methods: str) -> list[Row]:
    return [r for r in fair() if r["compress_method"] not in methods]


def tried(method: str, *rates: float, worse: float = 0.0) -> list[Row]:
    """All seeds at every learning rate, the one nearest 0.004 best."""
    return [r for rate in rates for r in arm(method, worse + abs(rate - 0.004), learning_rate=rate)]


ALL = ("none", "identity", "bf16", "int8")
TUNED = [r for method in ALL for r in tried(method, 0.002, 0.004, 0.008)]
BEFORE: dict[str, Any] = {"run_name": "before", "wall_time_s": 1.0}
NO_SPREAD = [row("int8", s, worse) for s, worse in zip(SEEDS, (-0.05, -0.049, -0.051), strict=True)]
PLANTED: dict[str, tuple[str, str, list[Row]]] = {  # what is wrong -> (severity, check, rows)
    "no baseline": ("error", "no_baseline", without("none")),
    "one seed": ("error", "one_seed", [r for r in fair() if r["seed"] == 1]),
    "two seeds": ("warning", "few_seeds", [r for r in fair() if r["seed"] < 3]),
    "only float32": ("error", "no_16_bit_baseline", without("bf16")),
    "gradients alone in bf16": ("error", "no_16_bit_baseline", [
        *without("bf16"), *arm("bf16", parameters="none")]),
    "bf16 that all died": ("error", "no_16_bit_baseline", [*without("bf16"), *[died("bf16", s) for s in SEEDS]]),
    "no denominators": ("warning", "no_16_bit_baseline", but("int8", elements_by_op=None)),
    "no identity": ("error", "no_identity_on_gloo", without("identity")),
    "fewer tokens": ("error", "different_tokens", but("int8", tokens_seen=99)),
    "unknown tokens": ("error", "different_tokens", [Row({**r, "tokens_seen": NAN}) for r in fair()]),
    "another corpus": ("error", "different_tokens", but("int8", dataset_tokens=5)),
    "other validation": ("error", "different_tokens", but("int8", val_tokens=5)),
    "another order": ("error", "other_stream", [
        Row({**r, "data_digest": "f" * 32}) if r["run_name"] == "int8-int8-2" else r for r in fair()]),
    "an order not known": ("warning", "other_stream", but("int8", data_digest=None)),
    "compressed weights judged": ("error", "different_tokens", but("int8", eval_weights="replicas")),
    "seeds apart": ("error", "seeds_not_shared", [*without("int8"), *arm("int8", 0.01, seeds=(4, 5, 6))]),
    "more seeds": ("warning", "seeds_not_shared", [*without("int8"), *arm("int8", 0.01, seeds=(1, 2, 3, 4))]),
    "a run dropped": ("error", "missing_runs", [
        *[r for method in ("none", "identity", "bf16") for r in arm(method, seeds=(1, 2, 3, 4))],
        *arm("int8", 0.01, seeds=(1, 2, 4))]),
    "baseline died": ("error", "baseline_failed", [
        *fair()[:2], died("none", 3), *fair()[3:]]),
    "made again": ("warning", "repeated_runs", [*fair(), died("int8", 1, **BEFORE)]),
    "until it was good": ("warning", "repeated_runs", [row("int8", 1, 0.9, **BEFORE), *fair()]),
    "tuned alone": ("error", "unequal_tuning", [*tried("int8", 0.003, 0.004, 0.005), *without("int8")]),
    "tuned in secret": ("error", "unequal_tuning", but("int8", learning_rate=0.002)),
    "best at the edge": ("warning", "best_at_the_edge", [
        r for method in ALL for r in tried(method, 0.004, 0.008)]),
    "a better one with fewer seeds": ("warning", "tuned_otherwise", [
        *[r for r in TUNED if r["compress_method"] != "int8"], *tried("int8", 0.004, 0.008),
        row("int8", 1, -0.2, learning_rate=0.002)]),
    "another CPU": ("error", "mixed_hardware", but("int8", hardware=CLEAN | {"cpu": "another"})),
    "another GPU": ("error", "mixed_hardware", but("int8", hardware=CLEAN | {"gpus": ["one"]})),
    "another backend": ("error", "mixed_hardware", but("int8", backend="virtual")),
    "another machine": ("warning", "mixed_hardware", but("int8", hardware=CLEAN | {"host": "else"})),
    "another commit": ("warning", "mixed_versions", but("int8", git_commit="b" * 40)),
    "another torch": ("warning", "mixed_versions", but("int8", versions={"python": "3.11.7", "torch": "2.12.0"})),
    "not committed": ("warning", "dirty_checkout", but("int8", git_dirty=True)),
    "baseline without prefetch": ("error", "other_schedule", but("none", fsdp_prefetch=0)),
    "too good": ("warning", "better_than_uncompressed", [*without("int8"), *NO_SPREAD]),
    "at the same time": ("error", "overlapping_runs", [
        Row({**r, "wall_time_s": 3700.0}) if r["run_name"] == "int8-int8-2" else r for r in fair()]),
    "bytes that are not true": ("error", "untrusted_bytes", but("int8", bytes_trusted=False)),
    "cold": ("error", "warm_up_counted", but("int8", warmup_steps_excluded=0)),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_what_was_planted_is_found_and_nothing_else(what: str) -> None:
    severity, check, rows = PLANTED[what]
    found = findings(rows)
    assert {(f.severity, f.check) for f in found} == {(severity, check)}, found
    line = verdict(found, comparisons(rows)[0])
    assert line.startswith("NOT FAIR: ") == (severity == "error")
    assert check.replace("_", " ") in line


def test_every_check_has_been_planted() -> None:
    assert {check.__name__ for check in CHECKS} <= {check for _, check, _ in PLANTED.values()}


def test_what_is_fair_is_not_accused() -> None:
    assert findings(fair()) == []
    assert findings(TUNED) == []  # the same three candidates for all
    assert (
        findings([*fair()[:12], row("int4", 1), died("int4", 2), diverged("int4", 3)]) == []
    )  # failing is no cheating
    on_gpus = [Row({**r, "backend": "nccl"}) for r in without("identity")]
    assert findings(on_gpus) == []  # stock collectives are as good as ours there
    assert findings([*fair(), *fair()]) == []  # a file read twice
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
            assert comparison_table(comparison, there.rows).latex()
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
    assert line(but("int8", git_dirty=True)) == (
        "fair: 3 seeds, same tokens, bf16 and fp32 baselines (to note: dirty checkout)"
    )
    assert line(without("bf16", "int8", "int4")) == "fair: 3 seeds, same tokens, fp32 baseline"
    overlapping = PLANTED["at the same time"][2]
    assert line(overlapping) == "NOT FAIR: overlapping runs"
    assert line(overlapping, ["quality", "bytes"]).startswith("fair")
    assert line(arm("int8")) == "one arm only: nothing is compared"
    assert verdict([]) == "fair: no error found"
    everything = [f for _, _, rows in PLANTED.values() for f in findings(rows)]
    assert len(verdict(everything)) < 260
    assert "more" in verdict(everything)
