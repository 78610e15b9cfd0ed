"""Where a step goes: every operation that MFU counts is found in the profile, and the points lost add up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.bench.computation.roofline.__main__ import main
from experiments.bench.computation.roofline.operator_times import ATTENTION, BETWEEN, BODY, HEAD, KINDS

FLAGS = ["--batch_size", "2", "--length", "32", "--threads", "1", "--steps", "1", "--profiled", "2"]

VECTORS = {"gpt2-nano": 9 * 2 + 4 * (3 + 1 + 4 + 1), "llama-nano": 9}  # norms and biases, in widths
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@pytest.fixture(scope="module", params=["gpt2-nano", "llama-nano"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("roofline")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ONE_RANK.items():
            patch.setenv(name, value)  # or joining would set them for the tests after this one
        assert main(["--model", request.param, *FLAGS, "--out", str(folder)]) == 0
    page = (folder / f"roofline_{request.param}.md").read_text()
    loaded: dict[str, Any] = json.loads((folder / f"roofline_{request.param}.json").read_text())
    assert f"{loaded['step_s']:.3f} s a step" in page
    return loaded


def _tokens(result: dict[str, Any]) -> int:
    return int(result["batch_size"] * result["length"])


def test_products_are_found_to_the_last_operation(result: dict[str, Any]) -> None:
    """Six for each parameter and token, forward, and backward to inputs and to weights; not for those in vectors."""
    heads, width, length = 4, 96 // 4, 32
    attention = 12 * 4 * heads * width * length * _tokens(result)
    in_vectors = 6 * VECTORS[result["model"]] * width * heads * _tokens(result)
    assert result["flops_of_products"] == result["flops"] - attention - in_vectors
    by_kind = {kind["kind"]: kind for kind in result["kinds"]}
    assert by_kind[ATTENTION]["flops"] == attention
    assert by_kind[HEAD]["flops"] == 6 * 50257 * 96 * _tokens(result)
    assert sum(kind["flops"] for kind in result["kinds"]) == result["flops"]


def test_the_shares_are_the_step_and_the_points_are_what_mfu_lacks(result: dict[str, Any]) -> None:
    kinds = result["kinds"]
    assert [kind["kind"] for kind in kinds] == [*KINDS, BETWEEN]
    assert sum(kind["step_s"] for kind in kinds) == pytest.approx(result["profiled_step_s"])
    assert sum(kind["share"] for kind in kinds) == pytest.approx(1)
    assert all(kind["step_s"] > 0 for kind in kinds)
    if (peak := result["ceilings"]["flops"]) is not None:
        reached = result["flops"] / result["profiled_step_s"] / peak
        assert 1 - sum(kind["mfu_lost"] for kind in kinds) == pytest.approx(reached)
        assert result["mfu"] == pytest.approx(result["flops"] / result["step_s"] / peak)


def test_products_have_their_kind_and_times(result: dict[str, Any]) -> None:
    products = result["products"]
    assert {product["kind"] for product in products} == {BODY, HEAD}
    assert all(product["step_s"] > 0 and product["alone_s"] > 0 for product in products)
    spent = {kind["kind"]: kind["step_s"] for kind in result["kinds"]}
    for kind in (BODY, HEAD):
        assert sum(p["step_s"] for p in products if p["kind"] == kind) == pytest.approx(spent[kind])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "gpt2-62n"], "gpt2-62m"),
        (["--model", "gpt2-nano", "--length", "99999"], "context"),
        (["--model", "llama-3.1-8b"], "GB"),
    ],
)
def test_refused_at_once(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ONE_RANK.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stopped:
        main(flags)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
