"""Finished runs that began with other weights than those that are here are named before more are paired with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import sweep
from experiments.sweeps import common_start
from experiments.sweeps.other_weights import other_weights
from experiments.sweeps.plan import Plan
from experiments.sweeps.recipe.cells import Cell
from fsdp_lab import results
from fsdp_lab.settings.models.weight_files import weight_files, weights_digest
from tests.experiments.sweeps.recipes import row_of, write_recipe
from tests.experiments.sweeps.test_plan import planned

START = {"model": "gpt2-nano", "max_steps": 20}
MODELS: list[dict[str, Any]] = [{"model_dir": "start"}, {"model_dir": "start", "max_steps": 30}]


def weights_in(folder: Path, what: bytes = b"here") -> str:
    """A folder of weights; their digest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(what)
    return weights_digest(weight_files(folder))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The digest of the start's weights in the working directory."""
    monkeypatch.chdir(tmp_path)
    (start,) = planned(tmp_path, models=MODELS, start=START).recipe.starts
    return weights_in(start.folder)


def after(folder: Path, began: dict[int, str | None], **changes: Any) -> Plan:
    """The plan of 8 cells (2 seeds x 2 lengths x 2 arms) when these, from 0, have finished with such a digest."""

    def rows(cells: list[Cell]) -> list[dict[str, Any]]:
        return [row_of(cells[place], start_digest=digest) for place, digest in began.items()]

    return planned(folder, rows, models=MODELS, start=START, **changes)


def test_other_weights_of_a_pair_are_named(tmp_path: Path, here: str) -> None:
    (line,) = other_weights(after(tmp_path, {0: "of another machine"}))
    assert "gpt2-nano" in line
    assert "has other weights than a finished run of the same seeds began with" in line
    (line,) = other_weights(after(tmp_path, {0: "other", 2: "other", 4: here}))
    assert "2 finished runs" in line
    (line,) = other_weights(after(tmp_path, {0: "other"}, tune={"learning_rate": [0.1, 0.2]}))  # rates are compared
    assert "a finished run" in line


@pytest.mark.parametrize("began", [
    {},
    {0: "here", 3: "here"},
    {0: None},  # a row from before it was written down
    {0: "other", 1: "other"},  # both arms of one seed and length have finished, and began alike
])  # fmt: skip
def test_nothing_is_said_where_all_pairs_begin_alike(tmp_path: Path, here: str, began: dict[int, str | None]) -> None:
    digests = {place: here if digest == "here" else digest for place, digest in began.items()}
    assert other_weights(after(tmp_path, digests)) == []


def test_what_is_not_there_yet_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert other_weights(after(tmp_path, {0: "other"})) == []
    assert other_weights(planned(tmp_path, lambda cells: [row_of(cells[0])])) == []  # fresh weights


def test_the_sweep_refuses_before_any_cell_and_after_a_start_was_trained_anew(
    tmp_path: Path, here: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = after(tmp_path, {0: "other"})
    for row in plan.rows:
        results.append(tmp_path / "rows.jsonl", row)
    words = [str(write_recipe(tmp_path, models=MODELS, start=START)), "--out", str(tmp_path / "rows.jsonl")]
    with pytest.raises(SystemExit) as refused:
        sweep.main(words)
    assert refused.value.code == 2
    assert "bring the other folder here" in capsys.readouterr().err
    (start,) = plan.recipe.starts
    (start.folder / "model.safetensors").unlink()
    start.folder.rmdir()
    monkeypatch.setattr(common_start, "ensure", lambda start, say: weights_in(start.folder, b"trained anew"))
    with pytest.raises(SystemExit) as refused:
        sweep.main(words)
    assert refused.value.code == 2
    assert "bring the other folder here" in capsys.readouterr().err
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1, "no cell ran"
