"""The drill under Slurm: refused where there is none, what it promises, and the generated script under a real one."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from experiments import sweep
from experiments.faults import slurm
from experiments.faults.one_machine_slurm import OneMachineSlurm, UnavailableError, require_tools
from tests.experiments.sweeps.fake_trainer import ROOT
from tests.experiments.sweeps.recipes import write_recipe


def why_not() -> str:
    try:
        require_tools()
        return ""
    except UnavailableError as error:
        return str(error)


def test_it_is_refused_without_slurm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as refused:
        slurm.main(["--out", str(tmp_path / "slurm.md")])
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("slurm: munged, slurmctld, slurmd, sbatch, ")
    assert said.endswith("not found; on Debian: apt-get install slurm-wlm munge\n")
    assert not (tmp_path / "slurm.md").exists()


def row(status: str, resumed: list[int], val_ppl: float = 3.0) -> dict[str, Any]:
    numbers = dict.fromkeys(slurm._COMPARED, 1.0) | {"val_ppl": val_ppl}
    return {"status": status, "resumed_at_steps": resumed, "config_hash": "a", **numbers}


@pytest.mark.parametrize(
    ("rows", "states", "good"),
    [
        ([row("preempted", []), row("ok", [9])], ["COMPLETED"], True),
        ([row("preempted", []), row("ok", [9])], ["TIMEOUT"], False),
        ([row("preempted", []), row("ok", [9], val_ppl=3.1)], ["COMPLETED"], False),
        ([row("preempted", []), row("ok", [])], ["COMPLETED"], False),  # it began anew
        ([row("ok", [])], ["COMPLETED"], False),  # nobody stopped it
        ([], ["COMPLETED"], False),
    ],
)
def test_a_stopped_cell_must_go_on_to_the_same_result(
    rows: list[dict[str, Any]], states: list[str], good: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab = slurm.Lab(tmp_path, None)  # type: ignore[arg-type]
    monkeypatch.setattr(lab, "_rows", lambda name: rows)
    monkeypatch.setattr(lab, "_without_slurm", lambda arms: [row("ok", [])])
    assert lab._outcome("case", "requeued", ["int8"], states, time.monotonic(), ["COMPLETED"]).as_promised is good


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_generated_script_is_started_again_by_a_real_slurm(tmp_path: Path) -> None:
    """A stand-in for the sweep says that it was stopped, and the second time that it is done; for two cells at once."""
    recipe, out, job = write_recipe(tmp_path), tmp_path / "rows", tmp_path / "job"
    assert sweep.main([str(recipe), "--out", str(out), "--slurm", str(job)]) == 0
    (tmp_path / "daemons").mkdir()
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho start >> "$OUT.$5"\n[ "$(wc -l < "$OUT.$5")" -gt 1 ] || exit 143\n')
    python.chmod(0o755)
    with OneMachineSlurm(tmp_path / "daemons") as cluster:
        places = {"PYTHON": str(python), "CHECKOUT": str(ROOT), "SWEEP": str(job), "OUT": str(out)}
        words = ["sbatch", "--parsable", "--array=1-2", f"--output={tmp_path}/log.txt", str(job / "cell.sbatch")]
        environment = {**cluster.environment, **places}
        number = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()
        elements, deadline = [f"{number}_1", f"{number}_2"], time.monotonic() + 60
        while (states := [cluster.progress(one) for one in elements]) != ["COMPLETED"] * 2 and "FAILED" not in states:
            assert time.monotonic() < deadline, states
            time.sleep(0.2)
        assert "FAILED" not in states, (tmp_path / "daemons" / "slurmctld.log").read_text()
    assert [Path(f"{out}.{element}").read_text() for element in (1, 2)] == ["start\nstart\n"] * 2
