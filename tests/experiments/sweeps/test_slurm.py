"""Array jobs: what is submitted, and that an element runs the cell it names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import sweep
from experiments.sweeps import launch
from experiments.sweeps.recipe.cells import Cell, cells_of
from experiments.sweeps.recipe.recipe import read
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL, TRAINERS
from fsdp_lab import results
from tests.experiments.sweeps import recipes
from tests.experiments.sweeps.fake_trainer import ROOT
from tests.experiments.sweeps.recipes import write_recipe
from tests.fsdp_lab.test_train import wait_until


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    recipe = write_recipe(tmp_path, world_sizes=[1, 16])
    words = [str(recipe), "--out", str(tmp_path / "rows.jsonl"), "--slurm", str(tmp_path / "a job")]
    assert sweep.main([*words, "--", "--max_steps", "7"]) == 0
    return tmp_path / "a job"


def test_an_array_for_each_number_of_ranks(written: Path) -> None:
    for name in ("submit.sh", "cell.sbatch"):
        subprocess.run(["bash", "-n", written / name], check=True)
    tools = written / "tools"
    tools.mkdir()
    program(tools, "sbatch", 'printf "%q " "$@"; echo')
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run([written / "submit.sh"], env=environment, capture_output=True, text=True, check=True)
    calls = [shlex.split(line) for line in done.stdout.splitlines()]
    assert len(calls) == 2
    for call, cells, nodes, gpus in zip(calls, ("1-2,5-6", "3-4,7-8"), (1, 2), (1, 8), strict=True):
        assert call[-1] == str(written / "cell.sbatch")
        assert {f"--array={cells}%8", f"--nodes={nodes}", f"--gpus-per-node={gpus}"} <= set(call)
        assert f"--output={written}/logs/%A_%a.txt" in call
        assert "--signal=B:TERM@120" in call
    environment |= {"GPUS": "no", "RANKS_PER_NODE": "16", "CPUS_PER_RANK": "1", "NOTICE": "60"}
    done = subprocess.run([written / "submit.sh"], env=environment, capture_output=True, text=True, check=True)
    for line, cores in zip(done.stdout.splitlines(), (1, 16), strict=True):
        assert {"--nodes=1", f"--cpus-per-task={cores}", "--signal=B:TERM@60"} <= set(shlex.split(line))
        assert "gpus" not in line


def test_an_element_runs_its_cell_with_the_flags_of_the_day(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(written, "python", 'printf "%q " "$@"')
    places = {"PYTHON": str(written / "python"), "CHECKOUT": str(ROOT), "SWEEP": str(written)}
    places |= {"OUT": str(written.parent / "rows.jsonl"), "SLURM_ARRAY_TASK_ID": "6"}
    command = ["bash", written / "cell.sbatch"]
    done = subprocess.run(command, env={**os.environ, **places}, capture_output=True, text=True, check=True)
    module, *words = shlex.split(done.stdout)[1:]
    assert module == "experiments.sweep"
    monkeypatch.setitem(TRAINERS, LANGUAGE_MODEL.name, recipes.quick())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert sweep.main(words) == 0
    (row,) = results.load(places["OUT"])
    assert (row["compress_method"], row["seed"], row["world_size"], row["config"]["max_steps"]) == ("int8", 2, 1, 7)


WAITS = """trap 'echo stopping; exit 143' TERM; touch "$OUT.runs"; for _ in {1..100}; do sleep 0.1; done; exit 1"""


def test_an_element_that_saved_in_time_is_started_again(written: Path) -> None:
    cases = [
        ("RUNNING", WAITS, 143, ["requeue 70_6"]),  # told to stop before its time is up
        ("COMPLETING", WAITS, 143, []),  # Slurm has seen to it, or the user has cancelled it
        ("RUNNING", "exit 143", 143, ["requeue 70_6"]),
        ("RUNNING", "exit 1", 1, []),
        ("RUNNING", "exit 0", 0, []),
    ]
    for number, (state, python, status, asked) in enumerate(cases):
        assert end_of_an_element(written, written / f"tools {number}", state, python) == (status, asked)


def test_a_signal_that_comes_before_the_script_knows_its_sweep_is_passed_on(written: Path) -> None:
    """The moment between the two lasts a second here."""
    script = written / "cell.sbatch"
    started = "\nsweep=$!\n"
    assert started in script.read_text()
    script.write_text(script.read_text().replace(started, "\nsleep 1; sweep=$!\n"))
    assert end_of_an_element(written, written / "tools", "RUNNING", WAITS) == (143, ["requeue 70_6"])


def end_of_an_element(written: Path, tools: Path, state: str, python: str) -> tuple[int, list[str]]:
    """Its exit code and what it asks of Slurm, which says that its job is in ``state``; ``python`` is the sweep."""
    tools.mkdir()
    program(tools, "python", python)
    program(tools, "squeue", f"echo {state}")
    program(tools, "scontrol", f'echo "$@" >> {shlex.quote(str(tools / "calls"))}')
    places = {"PYTHON": str(tools / "python"), "CHECKOUT": str(ROOT), "SWEEP": str(written), "OUT": str(tools / "out")}
    places |= {
        "SLURM_ARRAY_TASK_ID": "6",
        "SLURM_ARRAY_JOB_ID": "70",
        "SLURM_JOB_ID": "77",
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    process = subprocess.Popen(["bash", written / "cell.sbatch"], env={**os.environ, **places})
    if python == WAITS:
        wait_until((tools / "out.runs").exists)
        process.terminate()
    status, calls = process.wait(timeout=30), tools / "calls"
    return status, calls.read_text().splitlines() if calls.exists() else []


def cell_of(folder: Path, ranks: int) -> Cell:
    return cells_of(read(write_recipe(folder, world_sizes=[ranks])))[0]


def test_ranks_on_several_nodes_meet_at_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "scontrol", 'echo "$3" | tr , "\\n"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n7,n8", "SLURM_JOB_ID": "5012"}
    command = launch.command_of(cell_of(tmp_path, 8), Path("s.yaml"), job)
    assert command[:3] == ["srun", "--nodes=2", "--ntasks=2"]
    assert command[command.index(sys.executable) :][2] == "fsdp_lab.launch"
    assert {"--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=n7:29512", "--rdzv-id=5012"} <= set(command)
    assert command[-5:] == ["-m", "--", "fsdp_lab.train", "--config", "s.yaml"]
    with pytest.raises(ValueError, match="3 ranks cannot be spread evenly over the 2 nodes"):
        launch.command_of(cell_of(tmp_path, 3), Path("s.yaml"), job)
    one = launch.command_of(cell_of(tmp_path, 8), Path("s.yaml"), {**job, "SLURM_JOB_NUM_NODES": "1"})
    assert "--standalone" in one


def test_links_are_not_for_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sweep.main([str(write_recipe(tmp_path, links=["1gbit"])), "--slurm", str(tmp_path / "job")])
    assert "--slurm: emulated links need root on one machine" in capsys.readouterr().err
