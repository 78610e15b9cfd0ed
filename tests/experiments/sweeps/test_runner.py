"""Cells as processes: a trainer that takes no time stands in for the real one, except in the last test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments import sweep
from experiments.sweeps import launch, runner
from experiments.sweeps.locks import take
from experiments.sweeps.recipe.cells import cells_of, key_of
from experiments.sweeps.recipe.recipe import read
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL, TRAINERS
from fsdp_lab import results
from tests.experiments.sweeps import recipes
from tests.experiments.sweeps.fake_trainer import ROOT
from tests.experiments.sweeps.recipes import write_recipe
from tests.forked_launch import Forked
from tests.fsdp_lab.test_train import Lab, wait_until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run the stand-in, and those of another process are looked for often."""
    monkeypatch.setattr(runner, "_OTHERS_POLL_S", 0.2)
    monkeypatch.setitem(TRAINERS, LANGUAGE_MODEL.name, recipes.quick())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(folder: Path, *flags: str, **changes: Any) -> int:
    recipe = write_recipe(folder, **changes)
    return sweep.main([str(recipe), "--out", str(folder / "rows.jsonl"), *flags])


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    return results.load(path) if path.exists() else []


def said(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["compress_method"], row["seed"], row["status"]


@pytest.mark.usefixtures("quick")
def test_every_cell_runs_once_in_order_and_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    assert [said(r) for r in rows(tmp_path)] == [(m, s, "ok") for s in (1, 2) for m in ("none", "int8")]
    out, err = capsys.readouterr()
    assert f"next: fsdp-lab report {tmp_path / 'rows.jsonl'} --out report/" in out
    assert "4/4  2     int8  ok" in err
    assert not (tmp_path / "rows.jsonl.cells").exists()
    assert run(tmp_path, "--jobs", "2", seeds=[1, 2, 3]) == 0
    assert sorted(said(r) for r in rows(tmp_path)[4:]) == [("int8", 3, "ok"), ("none", 3, "ok")]


@pytest.mark.usefixtures("quick")
def test_a_failed_cell_is_tried_once_more_and_then_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [1, 11, 12, 13]
    assert run(tmp_path, arms=["none"], seeds=seeds) == 1
    found = rows(tmp_path)
    assert [(r["seed"], r["status"]) for r in found] == [
        *[(1, "ok"), (11, "failed"), (11, "failed")],
        *[(12, "failed"), (12, "ok"), (13, "failed"), (13, "failed")],
    ]
    assert [r["error"] for r in found if r["status"] == "failed"] == [
        *["diverged"] * 2,
        "killed by SIGKILL, without a row of its own",
        *["exit code 3, without a row of its own: out of memory"] * 2,
    ]
    err = capsys.readouterr().err
    assert err.count("trying once more") == 3
    logs = [Path(line.split(": ")[1]) for line in err.splitlines() if "its output" in line]
    log = logs[-1]
    assert log.read_text() == "out of memory\n"
    assert run(tmp_path, arms=["none"], seeds=seeds) == 1
    assert len(rows(tmp_path)) == 7
    assert run(tmp_path, "--retry_failed", arms=["none"], seeds=seeds) == 1
    assert [r["seed"] for r in rows(tmp_path)[7:]] == [11, 11, 13, 13]


@pytest.mark.usefixtures("quick")
def test_settings_that_the_trainer_refuses_at_once_end_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        run(tmp_path, seeds=[14, 1])
    assert raised.value.code == 2
    assert "cell 1 (none) was refused:\nfsdp_lab.train: batch_size: too many tokens" in capsys.readouterr().err
    assert rows(tmp_path) == []
    assert run(tmp_path, seeds=[1, 14], arms=["none"]) == 1
    assert [r["status"] for r in rows(tmp_path)] == ["ok", "failed", "failed"], "later on it is one cell's failure"


@pytest.mark.usefixtures("quick")
def test_cells_of_another_process_are_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = cells_of(read(write_recipe(tmp_path)))[0]
    path = tmp_path / "rows.jsonl.cells" / launch.folder_name(cell) / "lock"
    lock = take(path)
    assert lock is not None
    assert take(path) is None
    killed = path.parent / "killed" / "output"
    killed.mkdir(parents=True)
    holder = subprocess.Popen(
        ["sh", "-c", f"until [ -e {tmp_path}/rows.jsonl ]; do sleep 0.1; done"], pass_fds=[lock.fd]
    )
    os.close(lock.fd)  # what a killed sweep leaves: its child holds the lock on
    assert run(tmp_path) == 0
    assert holder.wait() == 0
    found = [said(row)[:2] for row in rows(tmp_path)]
    assert found[0] == ("int8", 1)
    assert sorted(found) == [("int8", 1), ("int8", 2), ("none", 1), ("none", 2)]
    assert "cell 1 (none, seed 1) is run by another process; it can wait" in capsys.readouterr().err
    assert not killed.exists()


def start_sweep(folder: Path, *flags: str, stand_in: bool = True, **changes: Any) -> Forked:
    words = [str(write_recipe(folder, **changes)), "--out", str(folder / "rows.jsonl"), *flags]
    return Forked(partial(_sweep, words, stand_in), os.environ, folder)


def _sweep(words: list[str], stand_in: bool) -> None:
    # a shell starts what runs in the background deaf to SIGINT, and so would be all that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if stand_in:
        TRAINERS[LANGUAGE_MODEL.name] = recipes.quick()
    sys.exit(sweep.main(words))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_stopped_leaves_a_preempted_row_and_can_go_on(tmp_path: Path, number: signal.Signals) -> None:
    changes: dict[str, Any] = {"arms": ["none"], "seeds": [1, 15]}
    process = start_sweep(tmp_path, **changes)
    wait_until((tmp_path / "ready").exists)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert "Go on with: fsdp-lab sweep" in err
        assert not (tmp_path / "rows.jsonl.cells").exists()
    wait_until(lambda: [r["status"] for r in rows(tmp_path)] == ["ok", "preempted"])
    (tmp_path / "go").touch()
    assert run(tmp_path, **changes) == 0
    assert [r["status"] for r in rows(tmp_path)] == ["ok", "preempted", "ok"]
    assert not (tmp_path / "rows.jsonl.cells").exists()


@pytest.mark.usefixtures("quick")
def test_a_cell_that_was_stopped_goes_on_from_its_checkpoint_or_begins_anew(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"arms": ["none"], "seeds": [16, 17]}
    process = start_sweep(tmp_path, "--jobs", "2", **changes)
    wait_until((tmp_path / "ready").exists)
    wait_until(lambda: len(list((tmp_path / "rows.jsonl.cells").glob("*/*/output/runs"))) == 2)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert len(list((tmp_path / "rows.jsonl.cells").rglob("manifest.json"))) == 2
    (tmp_path / "go").touch()
    assert run(tmp_path, **changes) == 0
    ended = {row["seed"]: row for row in rows(tmp_path) if row["status"] == "ok"}
    stopped = {row["seed"]: row for row in rows(tmp_path) if row["status"] == "preempted"}
    assert ended[16]["run_name"] == stopped[16]["run_name"]
    assert ended[17]["run_name"] != stopped[17]["run_name"]
    assert [ended[seed]["resumed_at_steps"] for seed in (16, 17)] == [[3], []]
    assert not (tmp_path / "rows.jsonl.cells").exists()


def test_real_cells_killed_in_the_middle_end_up_with_one_row_each(tmp_path: Path) -> None:
    """With the trainer itself; and the arms of a seed begin alike."""
    lab = Lab(tmp_path)
    documents = json.loads((lab.folder / "corpus.json").read_text())[:20]
    (lab.folder / "corpus.json").write_text(json.dumps(documents))
    common = {"max_steps": 2, "max_length": 16, "batch_size": 2, "val_fraction": 0.05, "log_interval": 1}
    changes: dict[str, Any] = {"corpus": str(tmp_path / "corpus.json"), "seeds": [1]}
    changes["common"] = {**common, "cache_dir": str(tmp_path / "cache"), "vocab_size": 1000}
    process = start_sweep(tmp_path, stand_in=False, **changes)
    wait_until(lambda: len(rows(tmp_path)) == 1, 120)
    process.kill()
    process.communicate()
    assert run(tmp_path, **changes) == 0
    ended = [row for row in rows(tmp_path) if row["status"] == "ok"]
    cells = cells_of(read(write_recipe(tmp_path, **changes)))
    assert Counter(key_of(row) for row in ended) == Counter(cell.key for cell in cells)
    first = {said(row)[:2]: _first_loss(tmp_path / row["loss_curve"]) for row in ended}
    assert first["none", 1] == first["int8", 1]


def _first_loss(curve: Path) -> float:
    """Of the first step: it tells weights and tokens, nothing has been exchanged yet."""
    return float(json.loads(curve.read_text().splitlines()[0])["train_loss"])
