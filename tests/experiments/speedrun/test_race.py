"""Which runs a race has: settings, seeds, turns; and what follows from their rows."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.statistics.intervals import p_better, paired_losses
from experiments.speedrun.calibrate import target_of
from experiments.speedrun.checks import order_of_tokens
from experiments.speedrun.race import Race
from experiments.speedrun.score import faster
from experiments.speedrun.task import (
    BF16,
    ENTRY,
    NONE,
    RANKS,
    SIGNIFICANCE,
    TASK,
    TRACKS,
    digest_of_settings,
    rehearsed,
)
from fsdp_lab.settings.config import TrainConfig
from tests.experiments.speedrun.planted import OWN, RACE

ROOT = Path(__file__).resolve().parents[3]


def test_every_fixed_setting_is_one_of_the_trainers_and_no_entry_can_change_it() -> None:
    specs = TrainConfig.specs()
    assert not {*TASK.fixed, *TASK.base} - specs.keys()
    assert not TASK.fixed.keys() & TASK.base.keys()
    assert TASK.own(2, TASK.settings(2, OWN) | {"model": "gpt2-mini", "seed": 3}) == OWN


@pytest.mark.parametrize("ranks", RANKS)
def test_baselines_take_as_many_tokens_a_step_on_any_number_of_ranks(ranks: int) -> None:
    settings = replace(RACE, ranks=ranks).settings(NONE)
    assert settings["batch_size"] * ranks == 8


def test_cells_have_exactly_the_settings_that_the_verifier_expects() -> None:
    for cell, (arm, seed) in zip(RACE.cells(), RACE.order(), strict=True):
        resolved = cell.config.resolved()
        assert (cell.arm.label, cell.seed, resolved["seed"]) == (arm, seed, seed)
        assert digest_of_settings(resolved) == digest_of_settings(RACE.settings(arm))
        assert all(resolved[name] == value for name, value in TASK.fixed.items())
        assert str(cell.link) == "200mbit"


def test_a_baseline_is_no_entry() -> None:
    with pytest.raises(ValueError, match="settings of the baseline 'bf16"):
        replace(RACE, own=dict(TASK.baselines[BF16])).digests()


@pytest.mark.parametrize(("track", "runs"), list(itertools.product(TRACKS, (2, 4, 5, 12))))
def test_arms_take_turns_so_that_a_drift_of_the_machine_is_in_all_of_them(track: str, runs: int) -> None:
    race = replace(RACE, track=TRACKS[track], runs=runs)
    order = race.order()
    assert sorted(order) == sorted((arm, seed) for arm in (ENTRY, NONE, BF16) for seed in race.seeds(arm))
    means = {arm: statistics.fmean(i for i, (of, _) in enumerate(order) if of == arm) for arm in (ENTRY, NONE, BF16)}
    assert max(means.values()) - min(means.values()) <= 1.5  # of places; a single run stands in the middle or beside it


def test_seeds_follow_from_what_is_entered() -> None:
    seeds = RACE.seeds(ENTRY)
    assert len(set(seeds)) == len(seeds) == RACE.runs
    assert RACE.seeds(NONE) == seeds[: RACE.baseline_runs]
    others = [
        replace(RACE, own={**OWN, "learning_rate": 0.0041}),
        replace(RACE, plugin="0" * 64),
        replace(RACE, track=TRACKS["1gbit"]),
        replace(RACE, ranks=4),
        replace(RACE, first=RACE.runs),
        replace(RACE, task=replace(TASK, name="another")),
    ]
    assert all(not set(race.seeds(ENTRY)) & set(seeds) for race in others)
    assert replace(RACE, runs=9).seeds(ENTRY)[: RACE.runs] == seeds


def test_a_rehearsal_has_few_steps_whatever_is_entered() -> None:
    race = Race(rehearsed(TASK), RACE.track, 2, 2, OWN)
    assert all(cell.config.resolved()["max_steps"] == 12 for cell in race.cells())


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says() -> None:
    draw = random.Random(1)
    held = 0
    for _ in range(400):
        own = [50 * math.exp(draw.gauss(0, 0.03)) for _ in range(4)]
        other = [100 * math.exp(draw.gauss(0, 0.03)) for _ in range(2)]
        ratio = faster(own, other)
        assert ratio.low is not None
        assert ratio.high is not None
        held += ratio.low <= 2 <= ratio.high
    assert 0.92 <= held / 400 <= 0.98
    assert faster([1.0], [2.0]).low is None


def test_a_target_is_the_lowest_that_four_runs_of_that_mean_and_spread_reach_beyond_chance() -> None:
    losses = [5.61, 5.66, 5.58, 5.63, 5.65]
    target, mean, apart = target_of(losses), statistics.fmean(losses), statistics.stdev(losses) * math.sqrt(3) / 2
    four = dict(enumerate([mean - apart, mean - apart, mean + apart, mean + apart]))
    assert statistics.stdev(four.values()) == pytest.approx(statistics.stdev(losses))
    below = [paired_losses(four, dict.fromkeys(four, to)) for to in (target, target - 0.01)]
    reached, missed = map(p_better, below)
    assert reached is not None
    assert missed is not None
    assert reached < SIGNIFICANCE <= missed


def test_sequences_are_put_in_the_order_that_a_real_run_recorded() -> None:
    row = json.loads((ROOT / "results" / "reference" / "fresh_weights" / "first_run.jsonl").read_text().splitlines()[0])
    rows = row["batch_size"] * row["world_size"]
    wanted = order_of_tokens._digest(50257, 0.02, row["max_length"], row["seed"], rows, row["steps"])
    assert row["data_digest"] == wanted
    assert row["val_tokens"] == order_of_tokens._validation_tokens(50257, 0.02, row["max_length"])
