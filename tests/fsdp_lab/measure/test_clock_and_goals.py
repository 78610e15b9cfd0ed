"""The small parts that measure a run: clock, goals, curve, clipping, and the window that must not disturb them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import comm_compress as cc
from fsdp_lab.measure.clock import StepClock
from fsdp_lab.measure.profiling import Window
from fsdp_lab.measure.samples import Sample, Samples
from fsdp_lab.run.goals import Goals
from fsdp_lab.run.storage.curve import Curve, seen_from
from fsdp_lab.settings.groups import OptimConfig
from fsdp_lab.training.evaluate import Evaluation
from fsdp_lab.training.optim import build_optimizer, take_step

ROOT = Path(__file__).resolve().parents[3]


def test_a_sampled_step_counts_as_a_usual_one_and_is_in_no_statistic(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = StepClock(torch.device("cpu"), warmup_steps=1)

    def step(seconds: float, keep: bool, sampled: bool = False) -> None:
        clock.start()
        now[0] += seconds
        clock.stop(keep, sampled)
        now[0] += 100  # an evaluation

    step(7, keep=False)
    step(1, keep=True)
    step(3, keep=True)
    step(50, keep=False, sampled=True)
    step(2, keep=True)
    assert clock.train_seconds == 7 + 1 + 3 + 2 + 2
    row = clock.row(tokens_per_step=10)
    assert (row["step_time_ms_mean"], row["steps_timed"], row["warmup_steps_excluded"]) == (2000, 3, 1)


def test_a_target_is_reached_by_the_first_evaluation_that_does() -> None:
    goals = Goals(target_ppl=math.exp(2.0), at_s=None)
    assert goals.row()["reached_target"] is False
    for step, loss in ((10, 2.1), (20, 1.9), (30, 1.5)):
        goals.saw(step, step / 4, Evaluation(loss, 100))
    assert goals.row() == {
        "reached_target": True,
        "steps_to_target_ppl": 20,
        "time_to_target_ppl_s": 5.0,
        "ppl_at_fixed_time": None,
    }


def test_a_miss_is_a_miss_and_no_target_is_neither() -> None:
    missed, none = Goals(2.0, None), Goals(None, None)
    for goals in (missed, none):
        goals.saw(10, 5.0, Evaluation(0.8, 100))
    assert missed.row() == {
        "reached_target": False,
        "steps_to_target_ppl": None,
        "time_to_target_ppl_s": None,
        "ppl_at_fixed_time": None,
    }
    assert none.row()["reached_target"] is None


def test_perplexity_at_a_time_is_that_of_the_first_evaluation_after_it() -> None:
    goals = Goals(None, at_s=6.0)
    assert [goals.is_time(s) for s in (5.9, 6.0)] == [False, True]
    goals.saw(10, 5.9, Evaluation(3.0, 100))
    goals.saw(11, 6.3, Evaluation(2.0, 100))
    assert not goals.waits_for_time
    goals.saw(12, 6.9, Evaluation(1.0, 100))
    assert goals.row()["ppl_at_fixed_time"] == math.exp(2.0)


def test_samples_are_averaged_and_those_without_a_value_left_out() -> None:
    samples = Samples()
    assert samples.row() == {
        "grad_samples": 0,
        "grad_rel_error": None,
        "grad_cos_sim": None,
        "residual_norm": None,
        "density": None,
    }
    one = cc.Comparison(error=0.5, exact=2, reduced=2, product=1, residual=2, gradient=8, carried=1, elements=10)
    other = cc.Comparison(error=1.5, exact=6, reduced=6, product=3, residual=6, gradient=24, carried=3, elements=10)
    samples.add(Sample.of([one, other]))
    samples.add(Sample.of([cc.Comparison(error=math.nan, exact=math.nan, gradient=math.nan, elements=10)]))
    row = samples.row()
    assert (row["grad_samples"], row["grad_rel_error"], row["grad_cos_sim"]) == (2, 0.5, 0.5)
    assert (row["residual_norm"], row["density"]) == (0.5, (0.2 + 0) / 2)


def test_a_curve_is_strict_json_with_short_numbers(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    curve = Curve(path)
    assert seen_from(tmp_path / "deep" / "results.jsonl", path) is None, "nothing written yet"
    curve.add(step=1, train_loss=1 / 3, val_ppl=math.inf)
    curve.add(step=123456789, sent_bytes=10**15)
    assert path.read_text() == (
        '{"step": 1, "train_loss": 0.3333333, "val_ppl": null}\n{"step": 123456789, "sent_bytes": 1000000000000000}\n'
    )
    assert seen_from(tmp_path / "deep" / "results.jsonl", path) == "../curve.jsonl"
    Curve(None).add(step=1)


def test_a_disk_that_takes_half_a_line_ends_the_curve_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    curve = Curve(tmp_path / "curve.jsonl")
    curve.add(step=1)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:3]))
        curve.add(step=2)
    curve.add(step=3)
    assert (tmp_path / "curve.jsonl").read_text() == '{"step": 1}\n'
    assert caplog.text.count("loss curve ends here") == 1


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    program = (
        "import itertools, sys, pathlib; from fsdp_lab.run.storage.curve import Curve\n"
        "curve = Curve(pathlib.Path(sys.argv[1]))\n"
        "for step in itertools.count(): curve.add(step=step, train_loss=step / 7, grad_norm=step / 3)"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT)
    while not path.exists() or path.stat().st_size < 50_000:
        assert writer.poll() is None
        time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    text = path.read_text()
    assert text.endswith("}\n")
    steps = [json.loads(line)["step"] for line in text.splitlines()]
    assert steps == list(range(len(steps)))


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("limit", "gradient", "taken", "clipped"),
    [(1.0, 3.0, True, True), (10.0, 3.0, True, False), (0.0, 3.0, True, False), (1.0, math.nan, False, False)],
)
def test_a_step_says_whether_it_was_clipped(limit: float, gradient: float, taken: bool, clipped: bool) -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer, schedule = build_optimizer(model, OptimConfig(learning_rate=0.1, warmup_steps=0), 10)
    model.weight.grad = torch.full((1, 1), gradient)
    outcome = take_step(model, optimizer, schedule, limit)
    assert (outcome.taken, outcome.clipped) == (taken, clipped)


def test_a_window_of_no_steps_profiles_nothing_and_disturbs_nothing() -> None:
    window = Window(6, 0, None, 0)
    for step in range(5, 9):
        window.begin_step(step)
        assert not window.disturbs(step)
        window.end_step()
        assert window.collect(step) is None
    assert window._profiler is None
