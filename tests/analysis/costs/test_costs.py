"""What predicts a cost: planted laws are found, methods are predicted without themselves, bad files are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.costs import laws
from analysis.costs.__main__ import SCREEN, main, tables
from analysis.costs.laws import correlation, interval, law
from analysis.costs.screened import MEASURES, Screened, read_screen, screened
from analysis.rows.comparing.comparisons import comparisons
from analysis.rows.reading import read
from tests.analysis.chart.planted import row

SWEEPS = Path(__file__).resolve().parents[3] / "results/reference/fresh_weights/sweeps.jsonl"


def planted(noise: float = 0.0, arms: int = 24) -> list[Screened]:
    """Arms of eight methods that cost 0.3 a b^0.5 nats, and a measure that has nothing to do with it."""
    random = np.random.default_rng(7)
    found = []
    for number in range(arms):
        a, b, other = random.uniform(0.01, 1, size=3)
        cost = 0.3 * a * math.sqrt(b) * math.exp(noise * random.normal())
        found.append(Screened(str(number), f"method {number % 8}", cost, {"a": a, "b": b, "other": other}))
    return found


def test_a_planted_law_is_found_and_predicts_methods_that_it_was_not_fitted_to() -> None:
    found = law(planted(), ("a", "b"))
    assert math.exp(found.at) == pytest.approx(0.3)
    assert found.powers == pytest.approx((1, 0.5))
    assert max(found.factors) == pytest.approx(1)
    assert {arm.label for arm, _ in found.predicted} == {arm.label for arm in planted()}
    one_alone = law(planted(), ("a",))
    assert max(one_alone.factors) > 1.5, "half of the law is not enough"


def test_a_method_is_predicted_without_itself() -> None:
    strange = [Screened("strange", "strange", 30.0, {"a": 0.5, "b": 0.5, "other": 0.5})]
    found = law([*planted(), *strange], ("a", "b"))
    nats = {arm.label: nats for arm, nats in found.predicted}
    assert nats["strange"] == pytest.approx(0.3 * 0.5 * math.sqrt(0.5)), "as the others have it"


def test_ranks_are_correlated_whatever_the_shape() -> None:
    arms = [Screened(str(x), f"m{x % 5}", math.exp(x), {"up": x**3, "down": -x, "flat": 1.0}) for x in range(20)]
    assert correlation(arms, "up") == pytest.approx(1)
    assert correlation(arms, "down") == pytest.approx(-1)
    assert math.isnan(correlation(arms, "flat"))
    assert interval(arms, "up") == (pytest.approx(1), pytest.approx(1))
    low, high = interval(planted(), "other")
    assert low < 0 < high
    assert (low, high) == interval(planted(), "other"), "the same every time"
    assert all(map(math.isnan, interval(arms[:1], "up"))), "of one arm nothing is known"
    tied = [Screened(str(x), "m", float(x), {"a": float(x // 2)}) for x in range(4)]
    assert correlation(tied, "a") == pytest.approx(2 / math.sqrt(5))  # ranks 0.5, 0.5, 2.5, 2.5 against 0, 1, 2, 3


def test_only_arms_that_compress_one_kind_alone_are_compared() -> None:
    arms: dict[str, Any] = {
        "none": (0.0, {}, {}),
        "int8": (0.01, {}, {"comm_compress": "int8"}),
        "identity + int4": (0.02, {}, {"comm_compress": "identity", "param_compress": "int4"}),
        "int8 + int4": (0.03, {}, {"comm_compress": "int8", "param_compress": "int4"}),
        "zero": (3.0, {}, {"comm_compress": "zero"}),
    }
    (compared,) = comparisons([row(arm, seed, arms=arms) for seed in (1, 2) for arm in arms])
    line = {"config": {}, "error": 0.5, "size": 0.8, "behind": 0.1, "gradient_error": 0.3, "gradient_cosine": 0.9}
    lines = [{**line, "kind": kind, "method": m} for kind in MEASURES for m in ("int8", "int4", "zero")]
    (gradients,) = screened(compared, lines, "gradients")
    assert (gradients.label, gradients.method, gradients.nats) == ("int8", "int8", pytest.approx(0.01, abs=1e-3))
    assert gradients.measures["gradients: 1 - cosine"] == pytest.approx(0.1)
    assert gradients.measures["updates: 1 - cosine"] == pytest.approx(1 - (0.64 + 1 - 0.5) / 1.6)
    (parameters,) = screened(compared, lines, "parameters")
    assert parameters.label == "identity + int4"
    old = [{name: value for name, value in one.items() if "gradient" not in name} for one in lines]
    assert "gradients: 1 - cosine" not in screened(compared, old, "gradients")[0].measures


def test_few_arms_make_no_law() -> None:
    arms = [Screened(str(n), f"m{n}", 0.1 * n, dict.fromkeys(MEASURES["parameters"], 0.1 * n)) for n in range(1, 5)]
    found, measured = tables(arms, "parameters", 0.01)
    assert [line[2] for line in found.rows] == ["-", "-", "-"]
    assert [line[0] for line in measured.rows] == ["1", "2", "3", "4"], "by rising cost"


def test_gradients_that_arrive_wrong_predict_the_cost_of_the_committed_sweep() -> None:
    (compared,) = comparisons(read(SWEEPS).rows)
    arms = screened(compared, read_screen(SCREEN.read_text(), "screen"), "gradients")
    assert len(arms) > 50
    assert correlation(arms, "gradients: 1 - cosine") > 0.9
    assert correlation(arms, "momentum behind") < 0.8


def test_the_command_prints_tables_and_refuses_what_is_no_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laws, "DRAWS", 20)
    assert main([str(SWEEPS), "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "What predicts the cost of compressed gradients" in said
    assert "| topk ratio=0.05 |" in said
    for text in ("{", json.dumps({"kind": "gradients"}), "[]"):
        bad = tmp_path / "bad.jsonl"
        bad.write_text(text + "\n")
        with pytest.raises(SystemExit) as ended:
            main([str(SWEEPS), "--screen", str(bad)])
        assert ended.value.code == 2
        assert "bad.jsonl, line 1: not of a screen" in capsys.readouterr().err
