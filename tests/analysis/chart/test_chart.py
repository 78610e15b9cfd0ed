"""The laws of the chart: who may be paired, who chose on which seeds, who is beaten; and what the command writes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from analysis.chart import page
from analysis.chart.__main__ import main, numbers
from analysis.chart.places import RATES, Chart, chart
from analysis.chart.rates import document, main as choose
from analysis.chart.step_times import step_times
from analysis.predict.calibration import Calibration
from analysis.predict.predictor import CALIBRATION
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import Row
from analysis.statistics import tuning
from tests.analysis.chart.planted import ARMS, BEST, RATES as GRID, SEEDS, judged, row, short, tuned, write

DEMO = "none, optimizer dct, by demo, 2 replicas"
DOMINATED = "topk + int8"


def placed(rows: list[Row], tried: list[Row] | None = None) -> Chart:
    tried = tuned() if tried is None else tried
    compared = tuning.judged(rows, tuning.tuning(tried) if tried else None)
    return chart(compared, [*rows, *tried], Calibration.load(CALIBRATION), 0.01)


def statuses(found: Chart) -> dict[str, str]:
    return {place.answered.label: place.answered.status for place in found.places}


def test_optimizers_and_local_steps_are_arms_here_and_settings_elsewhere() -> None:
    rows = judged()
    across = comparisons(rows, across_training=True)
    assert [len(across), {runs.arm.label for runs in across[0].arms}] == [1, set(ARMS)]
    assert {runs.arm.family for runs in across[0].arms} == {"none", "bf16", "muon", "demo", "diloco", "topk"}
    assert [len(comparison.arms) for comparison in comparisons(rows)] == [3, 1, 1, 1]


def test_every_arm_stands_where_it_was_planted() -> None:
    found = placed(judged())
    bits = {place.answered.label: place.answered.line.bits for place in found.places}
    assert bits == {short(arm): pytest.approx(sum(sent.values()), rel=1e-3) for arm, (_, sent, _) in ARMS.items()}
    by_arm = {place.answered.label: place for place in found.places}
    assert by_arm[short(DEMO)].by_operation == {"optimizer": pytest.approx(0.64, rel=1e-3)}
    change = by_arm[short(DEMO)].answered.line.change
    assert change is not None
    assert change.mean == pytest.approx(0.0305, abs=1e-3)  # exp(0.03) - 1
    assert change.n == 4
    assert [place.answered.label for place in found.places][:2] == ["every 30 diloco", short(DEMO)]


def test_a_planted_dominated_arm_is_named_and_no_other() -> None:
    found = placed(judged())
    assert [place.answered.label for place in found.beaten_everywhere] == [DOMINATED]
    assert statuses(found) == {**dict.fromkeys(map(short, ARMS), "front"), "none": "baseline", DOMINATED: "beaten"}


def test_permuting_rows_changes_nothing() -> None:
    rows, tried = judged(), tuned()
    first = numbers(placed(rows, tried), None)
    for seed in range(3):
        shuffled = random.Random(seed)
        shuffled.shuffle(rows)
        shuffled.shuffle(tried)
        assert numbers(placed(rows, tried), None) == first


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"max_steps": 300}, "max_steps"), ({"model": "gpt2-nano"}, "model"), ({"world_size": 4}, "world_size")],
)
def test_runs_that_differ_in_more_than_their_arm_are_not_paired(changes: dict[str, Any], named: str) -> None:
    rows = [*judged(list(ARMS)[:3]), *judged([DEMO], **changes)]
    with pytest.raises(ValueError, match=f"2 settings.*{named}"):
        placed(rows)


def test_nothing_is_compared_with_another_baseline_than_adamw_under_fsdp2() -> None:
    replicas = [Row({**one, "config": {**one["config"], "dp_replicas": 2}}) for one in judged(["none"])]
    with pytest.raises(ValueError, match="no arm 'none'"):
        placed([*replicas, *judged([DOMINATED])])


def test_a_rate_chosen_on_the_seeds_that_judge_is_refused() -> None:
    picked = [row(DEMO, seed, rate) for seed in (1, 2) for rate in GRID]
    with pytest.raises(ValueError, match=r"demo.*several candidates.*selection"):
        placed([*judged(), *picked], tried=[])
    elsewhere = [one for one in judged() if "demo" not in one["run_name"]]
    with pytest.raises(ValueError, match=r"demo.*judged at learning_rate 0\.006, where .* choose learning_rate 0\.002"):
        placed([*elsewhere, *judged([DEMO], rate=0.006)])
    with pytest.raises(ValueError, match=r"seed 1, 2 is in the tuning rows"):
        placed(judged(), tried=tuned(seeds=(1, 2, 11)))
    with pytest.raises(ValueError, match="of another setting than the judged ones: model"):
        placed(judged(), tried=[Row({**one, "config": {**one["config"], "model": "gpt2-nano"}}) for one in tuned()])


def test_shorter_tuning_runs_are_taken() -> None:
    shorter = [Row({**one, "config": {**one["config"], "max_steps": 100}}) for one in tuned()]
    assert statuses(placed(judged(), shorter)) == statuses(placed(judged()))


def test_an_arm_with_fewer_rates_tried_is_named() -> None:
    fewer = [one for one in tuned() if "demo" not in one["run_name"] or one["config"]["learning_rate"] == BEST]
    found = placed(judged(), fewer)
    (finding,) = [one for one in found.findings if one.check == "unequal_tuning"]
    assert finding.severity == "error"
    assert f"1: {short(DEMO)}" in finding.what
    assert [arm.label for arm in finding.arms] == [short(DEMO)]
    assert statuses(found)[short(DEMO)] == "unfair"
    assert statuses(found)["muon"] == "front"
    untried = placed(judged(), [one for one in tuned() if "demo" not in one["run_name"]])
    assert statuses(untried)[short(DEMO)] == "unfair"


def test_rates_beyond_the_edge_are_no_advantage_where_all_that_ended_there_tried_them() -> None:
    above, below = 2 * max(GRID), min(GRID) / 2

    def further(arm: str, rate: float, worse: float) -> Row:
        return row(arm, 11, worse=worse, learning_rate=rate, run_name=f"{arm}-{rate}-11")

    def unequal(*more: Row, demo: float = max(GRID), muon: float = BEST) -> set[str]:
        """Arms that are said to have been tuned unequally, where demo's best of the common rates is the last one."""
        tried = [one for one in tuned() if "demo" not in one["run_name"]]
        tried += [row(DEMO, 11, rate, worse=-100 * rate) for rate in GRID]
        at = {"demo": demo, "muon": muon}
        runs = [
            Row({**one, "config": {**one["config"], "learning_rate": at.get(one["config"].get("optimizer", ""), BEST)}})
            for one in judged()
        ]
        found = placed(runs, [*tried, *more]).findings
        checks = ("unequal_tuning", "other_candidates")
        return {arm.label for one in found if one.check in checks for arm in one.arms}

    assert unequal() == set()
    assert unequal(further(DEMO, above, 1.0)) == set()
    assert unequal(further("none, by muon", above, 1.0)) == {"muon"}, "demo, which ended there, tried none"
    both = further(DEMO, above, 1.0), further("none, by muon", above, 1.0)
    assert unequal(*both) == set(), "muon gains nothing by it"
    gains = further(DEMO, above, 1.0), further("none, by muon", above, -1.0)
    assert unequal(*gains, muon=above) == {short(DEMO), "muon"}
    assert unequal(further(DEMO, above, 1.0), further(DEMO, below, -2.0), demo=below) == {short(DEMO)}


def test_other_rates_and_other_tuning_seeds_are_named() -> None:
    moved = [row("none, by muon", 11, rate) for rate in GRID[1:]]
    moved.append(Row({**moved[0], "config": {**moved[0]["config"], "learning_rate": 0.02}}))
    rest = [one for one in tuned() if "muon" not in one["run_name"]]
    found = placed(judged(), [*rest, *moved])
    assert {one.check for one in found.findings} >= {"other_candidates"}
    later = [*tuned(), *(row("none, by muon", 12, rate) for rate in GRID)]
    (finding,) = [one for one in placed(judged(), later).findings if one.check == "other_tuning_seeds"]
    assert "muon (11, 12)" in finding.what


def test_outer_momenta_that_only_tuning_rows_have_are_counted() -> None:
    local = "none, every 30 diloco, 2 replicas"
    worse, bits, settings = ARMS[local]
    both = {**ARMS, "averaged": (worse, bits, {**settings, "outer": "local_sgd"})}
    others = {f"momentum {m}": (worse, bits, {**settings, "outer_momentum": m}) for m in (0.3, 0.6)}
    runs = [*judged(), *(row("averaged", seed, arms=both) for seed in SEEDS)]
    tried = [*tuned(), *(row("averaged", 11, rate, arms=both) for rate in GRID)]
    assert not [one for one in placed(runs, tried).findings if one.check == "unequal_outer_rates"]
    known = {"outer": "none", "outer_every": 30, "outer_momentum": None}
    more = [row(name, 11, arms=others, arm_settings=known) for name in others]
    found = placed(runs, [*tried, *more])
    (finding,) = [one for one in found.findings if one.check == "unequal_outer_rates"]
    assert "(1: every 30 local_sgd; 3: every 30 diloco)" in finding.what
    assert [arm.label for arm in finding.arms] == [short(local)]
    assert statuses(found)[short(local)] != "unfair"


def test_a_rate_that_failed_is_not_chosen_and_ties_go_to_the_smaller() -> None:
    rows = [row("none", 11, rate, worse=0.05 * (rate == BEST)) for rate in GRID]
    assert tuning.tuning(rows).choices[comparisons(rows)[0].arms[0].arm].tuned == {"learning_rate": 0.0006}
    lost = [Row({**rows[0], "status": "failed", "val_loss": None}), *rows[1:]]
    assert document(tuning.tuning(lost), [])["chosen"] == {"none": {"learning_rate": 0.002}}


def test_an_arm_with_a_failed_run_is_named_and_beats_nobody() -> None:
    died = {"status": "failed", "val_loss": None}
    found = placed([Row({**one, **died}) if "muon-0.002-3" in one["run_name"] else one for one in judged()])
    assert statuses(found)["muon"] == "failed"
    assert all(place.answered.line.beaten_by != "muon" for place in found.places)


def test_slow_links_favour_who_sends_less() -> None:
    by_arm = {place.answered.label: place.seconds for place in placed(judged()).places}
    plain, sparse = by_arm["none"], by_arm[short(DEMO)]
    ratios = [(plain[rate] or 0) / (sparse[rate] or 1) for rate in RATES]  # the fastest link first
    assert ratios == sorted(ratios)
    assert ratios[-1] > 5
    assert ratios[0] == pytest.approx(1, abs=0.2)


def test_no_times_are_told_of_runs_behind_a_link() -> None:
    linked = [Row({**one, "link_rate_asked": 2e8}) for one in judged()]
    assert placed(linked, []).why_no_times == "no row has step times and bytes"


def timed(**changes: Any) -> list[Row]:
    """A short run of every arm on a quiet machine, each arm's steps a millisecond longer than the one's before."""
    by_arm = enumerate(ARMS)
    return [row(arm, 31, **{"max_steps": 35, "step_time_ms_mean": 100.0 + n, **changes}) for n, arm in by_arm]


def test_steps_are_those_of_the_rows_that_time_them() -> None:
    compared = tuning.judged(judged(), None)
    calibration = Calibration.load(CALIBRATION)
    apart = chart(compared, judged(), calibration, 0.01, step_times(timed(), compared))
    by_arm = {place.answered.label: place.seconds["10 Gbit/s"] for place in apart.places}
    steps = judged(["none"])[0]["steps"]
    for number, arm in enumerate(ARMS):
        added = (by_arm[short(arm)] or 0) / steps - (0.1 + number / 1e3)
        assert -1e-9 < added < 0.05, "a fast link adds little to the step that was timed"
    assert apart.timed_apart
    linked = timed(step_time_ms_mean=9e9, link_rate_asked=2e8)
    again = chart(compared, judged(), calibration, 0.01, step_times([*timed(), *linked], compared))
    assert numbers(again, None) == numbers(apart, None), "rows behind a link time nothing"
    without = step_times([one for one in timed() if "demo" not in one["run_name"]], compared)
    unknown = {p.answered.label: p.seconds for p in chart(compared, judged(), calibration, 0.01, without).places}
    assert set(unknown[short(DEMO)].values()) == {None}


def test_what_shared_the_machine_of_the_judged_runs_is_not_held_against_times_of_others() -> None:
    slow = [
        Row({**one, "hardware": {**(one["hardware"] or {}), "cpu": "another"}}) for one in judged(["none, by muon"])
    ]
    mixed = [*[one for one in judged() if "muon" not in one["run_name"]], *slow]
    compared = tuning.judged(mixed, None)
    own = {one.check for one in chart(compared, mixed, None, 0.01).findings if one.concerns == "times"}
    apart = chart(compared, mixed, None, 0.01, step_times(timed(), compared))
    assert "mixed_hardware" in own
    assert "mixed_hardware" not in {one.check for one in apart.findings if one.concerns == "times"}


def test_times_of_another_setting_are_refused() -> None:
    compared = tuning.judged(judged(), None)
    with pytest.raises(ValueError, match=r"the rows of --times are of another setting .*model"):
        step_times(timed(model="gpt2-nano"), compared)
    with pytest.raises(ValueError, match="the rows of --times: none is left"):
        step_times(timed(link_rate_asked=2e8), compared)


def test_the_command_writes_page_figures_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, tried = write(tmp_path / "rows.jsonl", judged()), write(tmp_path / "tuning.jsonl", tuned())
    out = tmp_path / "chart"
    assert main([str(rows), "--tuning", str(tried), "--out", str(out), "--formats", "svg"]) == 0
    said = capsys.readouterr().out
    assert f"Beaten everywhere, at their bits and behind every link, beyond chance: {DOMINATED}" in said
    fronts = {"front.svg", *(f"{page.of_link(rate)}.svg" for rate in RATES)}
    assert {path.name for path in out.iterdir()} == {"index.html", "chart.json", "chart.svg", "times.svg", *fronts}
    text = (out / "index.html").read_text()
    assert text.count("<script>") == 1
    assert text.count('<figure class="front"') == 1 + len(RATES)
    assert 'data-family="demo"' in text
    written = json.loads((out / "chart.json").read_text())
    assert {arm["candidates"] for arm in written["arms"]} == {3}
    assert written["tuning_seeds"] == [11]


def test_bad_rows_are_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(tmp_path / "rows.jsonl", judged([DEMO, "none, by muon"]))
    with pytest.raises(SystemExit) as ended:
        main([str(rows), "--out", str(tmp_path / "chart")])
    assert ended.value.code == 2
    assert "no arm 'none'" in capsys.readouterr().err


def test_rates_are_written_for_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rates.json"
    assert choose([str(write(tmp_path / "tuning.jsonl", tuned())), "--out", str(out)]) == 0
    assert "0.002: 4." in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert written["chosen"] == {arm: {"learning_rate": BEST} for arm in ARMS}
    assert written["seeds"] == [11]
