"""The benchmark of operators: which variants there are, what is found wrong with one, a small run with a wrong one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from hypothesis import given, strategies as st

from experiments.bench.computation.operators import turns
from experiments.bench.computation.operators.__main__ import main
from experiments.bench.computation.operators.arms import Arm, ablation, not_here
from experiments.bench.computation.operators.checks import GRADIENT, LOSS, complaints
from experiments.bench.computation.operators.measure import Turn
from experiments.bench.computation.operators.report import median_interval
from fsdp_lab.models.operators import rms_norm
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.operators import OPERATORS, Facts, choose


def facts(family: str, device: str, dtype: str, *packages: str) -> Facts:
    return Facts(family, device, dtype, (2, 13), lambda extra: None if extra in packages else f"no {extra}")


WHERE = [
    facts("gpt2", "cpu", "fp32"),
    facts("bert", "cpu", "fp32"),
    facts("llama", "cpu", "fp32"),
    facts("llama", "cuda", "bf16"),
    facts("llama", "cuda", "bf16", "liger", "flash"),
]


@pytest.mark.parametrize("where", WHERE, ids=lambda f: f"{f.family}-{f.device}")
@pytest.mark.parametrize("every", [False, True])
def test_every_operator_with_a_choice_has_a_row_and_every_variant_can_be_had(where: Facts, every: bool) -> None:
    arms = ablation(where, every)
    assert len({arm.name for arm in arms}) == len(arms)
    assert [arm.name for arm in arms[:2]] == ["naive", "best"]
    computed = {arm.name: choose(ModelConfig(operators=dict(arm.operators)), where) for arm in arms[:-1]}
    absent = {(n.operator, n.implementation) for n in not_here(where)}
    for name, operator in OPERATORS.items():
        if where.family in operator.families:
            there = {c for c in operator.choices_of(where.family) if (name, c) not in absent}
            measured = {choices[name] for choices in computed.values()}
            assert len(measured) >= min(2, len(there))
            assert not every or measured == there
    naive, best = computed["naive"], computed["best"]
    for name in naive:
        if naive[name] != best[name]:
            without, alone = computed[f"best, {name} {naive[name]}"], computed[f"naive, {name} {best[name]}"]
            assert without[name] == naive[name]
            assert alone == {**naive, name: best[name]}


def test_what_is_stopped_early_leaves_naive_and_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def stopped(config: TrainConfig, arm: Arm, *_: Any) -> Turn:
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(arm.name)
        if arm.name == "best":
            raise OSError("no compiler")
        seconds = {phase: [0.1, 0.2] for phase in ("forward", "backward", "optimizer")}
        return Turn({}, seconds, [1.0, 0.9, 0.8], {"weight": 1.0}, 0.5, 1.0, 1e6, 1000, 900)

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(turns, "turn", stopped)
    size = ["--model", "llama-mini", "--batch_size", "1", "--length", "16", "--threads", "1", "--repeats", "1"]
    with pytest.raises(KeyboardInterrupt):
        main([*size, "--steps", "2", "--warm_up", "1", "--out", str(tmp_path)])
    assert set(taken[:2]) == {"naive", "best"}
    rows = {row["variant"]: row for row in json.loads((tmp_path / "operators_llama-mini.json").read_text())["rows"]}
    assert rows["naive"]["step_s"] == pytest.approx(0.45)
    assert rows["best"]["failed"] == "OSError: no compiler"
    assert rows[taken[2]]["complaints"] == []
    assert {row["failed"] for name, row in rows.items() if name not in taken} == {"not run"}


def test_liger_is_not_here_and_the_reason_is_said() -> None:
    said = {(n.operator, n.implementation): n.reason for n in not_here(WHERE[2])}
    assert "run on a CUDA device only" in said["rope", "liger"]
    assert [n.implementation for n in not_here(WHERE[4])] == ["torch"], "its loss has 16 bits there"


NAIVE = {"wte": 2.0, "k.bias": 1e-9, "norm": 0.5}


@pytest.mark.parametrize(
    ("losses", "gradients", "said"),
    [
        ([3.0, 2.0], NAIVE, ""),
        ([3.0, 2.0 * (1 + 0.5 * LOSS["fp32"])], {**NAIVE, "k.bias": 0.0}, ""),
        ([3.0, 2.0 * (1 + 2 * LOSS["fp32"])], NAIVE, "a loss is 2.0e-04 of itself off"),
        ([3.0, math.nan], NAIVE, "a loss is inf"),
        ([3.0, 2.0], {**NAIVE, "norm": 0.0}, "no gradient in norm"),
        ([3.0, 2.0], {**NAIVE, "norm": math.nan}, "no gradient in norm"),
        ([3.0, 2.0], {**NAIVE, "norm": 0.5 * (1 + 2 * GRADIENT["fp32"])}, "the gradient's norm is 2.0e-03"),
        ([3.0, 2.0], {"wte": 2.0, "norm": 0.5}, "other parameters have gradients"),
    ],
)
def test_what_is_not_as_naive_is_said(losses: list[float], gradients: dict[str, float], said: str) -> None:
    found = complaints(losses, gradients, [3.0, 2.0], NAIVE, "fp32")
    assert found == [] if not said else said in found[0]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40))
def test_an_interval_holds_the_median_with_the_chance_that_it_says(values: list[float]) -> None:
    low, high, chance = median_interval(values)
    ordered, n = sorted(values), len(values)
    at = next(k for k in range((n + 1) // 2) if (ordered[k], ordered[n - 1 - k]) == (low, high))
    exact = [1 - 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n for k in range((n + 1) // 2)]
    assert any(chance == pytest.approx(c) and ordered[k] == low for k, c in enumerate(exact) if k >= at)
    assert chance >= 0.95 or n < 6
    if n >= 6:
        wider = [c for c in exact if c >= 0.95]
        assert chance == pytest.approx(min(wider))  # the narrowest that will do


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small run in which torch's RMSNorm is wrong by a part in a hundred, and the bf16 row is right."""
    out = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
            patch.setenv(name, value)
        wrong = lambda norm, x: F.rms_norm(x, norm.weight.shape, norm.weight, 1e-2)  # noqa: E731
        patch.setattr(rms_norm, "_forward", lambda *_: wrong)
        size = ["--batch_size", "1", "--length", "16", "--steps", "2", "--warm_up", "1", "--repeats", "1"]
        left_out = ["--leave_out", "compile", "rope", "swiglu", "attention", "adamw"]
        assert main(["--model", "llama-mini", "--threads", "1", *size, *left_out, "--out", str(out)]) == 0
    page = (out / "operators_llama-mini.md").read_text()
    found: dict[str, Any] = json.loads((out / "operators_llama-mini.json").read_text())
    return found | {"page": page}


def test_a_row_with_a_wrong_operator_says_so_and_only_that(result: dict[str, Any]) -> None:
    rows = {row["variant"]: row for row in result["rows"]}
    assert rows["naive"]["complaints"] == rows["best, rms_norm plain"]["complaints"] == []
    assert rows["naive, cross_entropy chunked-128mb"]["complaints"] == []
    assert "a loss is" in rows["best"]["complaints"][0]
    assert "a loss is" in rows["naive, rms_norm torch"]["complaints"][0]
    assert "| naive |" in result["page"]
    assert "no: a loss is" in result["page"]


def test_figures_fit_each_other(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        low, high = row["step_s_interval"]
        assert low <= row["step_s"] <= high
        assert row["steps_timed"] == 2
        assert row["tokens_per_s"] == pytest.approx(16 / row["step_s"])
        parts = sum(row[f"{phase}_s"] for phase in ("forward", "backward", "optimizer"))
        assert parts == pytest.approx(row["step_s"], rel=0.5)
        peak = result["peak_flops"][row["dtype"]]
        assert row["mfu"] == pytest.approx(row["tokens_per_s"] * row["flops_per_token"] / peak)
        assert row["peak_gb"] > 0.05
    expected = 6 * result["multiplying"] + 12 * 4 * 192 * 16
    assert result["rows"][0]["flops_per_token"] == expected
    assert result["num_parameters"] == result["multiplying"] == 2_361_024


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "gpt3"], "no preset 'gpt3'"),
        (["--model", "gpt2-mini", "--length", "300"], "length: 300 is beyond gpt2-mini's context of 256"),
        (["--model", "llama-3.1-8b"], "parameters takes 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "0")
    for name, value in {"WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as left:
        main([*flags, "--out", str(tmp_path)])
    assert left.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
