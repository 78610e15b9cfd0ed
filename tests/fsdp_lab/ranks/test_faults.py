"""What becomes of a run when something breaks: the promises of docs/trainer/faults.md, on real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.faults.drills import Drill
from fsdp_lab.ranks import faults
from fsdp_lab.ranks.faults import VARIABLE, Fault, parse
from fsdp_lab.ranks.processes import forked_ranks
from fsdp_lab.results.validation import problems
from fsdp_lab.settings.reading.fields import ConfigError
from tests.distributed import preload, started_program, torchrun_environment
from tests.forked_launch import is_running
from tests.fsdp_lab.test_train import (
    ROOT,
    Lab,
    start_endless,
    train_tiny,
    wait_until,
)
from tests.fsdp_lab.training_ranks import Training, train_all

preload("fsdp_lab.train")

# ---- the injector


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("kill:rank=1,step=7", (Fault("kill", "step", rank=1, step=7),)),
        (" stop ; nan:step=3 ", (Fault("stop", "step"), Fault("nan", "backward", step=3))),
        ("slow:s=0.5,at=save", (Fault("slow", "save", s=0.5),)),
        ("exit:code=0", (Fault("exit", "step", code=0),)),
        ("full_disk", (Fault("full_disk", "save"),)),
    ],
)
def test_faults_are_read(text: str, expected: tuple[Fault, ...]) -> None:
    assert parse(text) == expected
    assert parse(";".join(map(str, expected))) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kil:rank=1", ["'kil:rank=1'", "no such kind", "full_disk"]),
        ("kill:rank=one", ["rank=one", "whole number"]),
        ("kill:rank=-1", ["rank=-1"]),
        ("kill:rank=1,rank=2", ["twice"]),
        ("kill:s=1", ["s: no such key", "rank, step, at"]),
        ("hang:s=long", ["s=long", "seconds"]),
        ("slow", ["s=SECONDS"]),
        ("full_disk:at=step", ["at=step", "row"]),
        ("kill:at=nowhere", ["at=nowhere", "validate"]),
        ("kill:at", ["at="]),
        ("kill:rank=x;stop:step=y", ["rank=x", "step=y"]),
    ],
)
def test_a_fault_that_is_not_understood_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text)
    for word in (VARIABLE, *words):
        assert word in str(refused.value)


def test_a_fault_happens_once_to_its_rank_at_its_point_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[tuple[int, int]] = []
    monkeypatch.setattr(faults.os, "kill", lambda pid, number: happened.append((pid, number)))
    monkeypatch.setenv(VARIABLE, "kill:rank=1,step=2")
    for rank, expected in ((0, []), (1, [(os.getpid(), signal.SIGKILL)])):
        assert faults.arm(rank) == "kill:rank=1,step=2"
        for step in (1, 2, 2, 3):
            faults.at("step", step=step)
            faults.at("validate")
        assert happened == expected
    monkeypatch.delenv(VARIABLE)
    assert faults.arm(0) is None


# ---- what a run survives, or ends from by itself: one start of two ranks for all of them

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "untouched": ("", {}),
    "nan": ("nan:rank=1,step=3", {}),
    "nan for ever": ("nan:rank=1", {"max_nonfinite_steps": 3}),
    "signal in validation": ("usr2:rank=1,at=validate,step=6", {}),
    "signal while tokenising": ("term:at=tokenize", {}),
    "begun again": ("", {"run_name": "signal-while-tokenising", "max_steps": 2}),
    "SIGHUP": ("hup:rank=1,step=4", {}),
    "SIGQUIT": ("quit:rank=1,step=4", {}),
    "full disk, checkpoint": ("full_disk:rank=1,at=save,step=6", {"save_steps": 3}),
    "full disk, row": ("full_disk:at=row", {"save_model": "true"}),
    "bad": ("kill:rank", {}),
}
FRAGMENT = '{"schema_version": 3, "status": "ok", "run_na'


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, dict[str, str | None]]:
    """Every case's run, in a results file that a killed writer has left truncated; what each ended with."""
    lab = Lab(tmp_path_factory.mktemp("faults"))
    lab.rows_file.write_text(FRAGMENT)
    runs = []
    for name, (fault, settings) in CASES.items():
        cache = lab.folder / ("cache of its own" if "tokenising" in name else "cache")
        common = {"eval_steps": 6, "max_steps": 8, "cache_dir": cache, "save_model": "false"}
        common["run_name"] = re.sub(r"\W+", "-", name)
        runs.append(Training(lab.flags(**{**common, **settings}), fault=fault))
    ended = train_all(runs, tiny=True)
    return lab, dict(zip(CASES, ended, strict=True))


def row_of(lab: Lab, name: str) -> dict[str, Any]:
    """The first row of a case."""
    row = next(row for row in lab.rows() if row["run_name"] == re.sub(r"\W+", "-", name))
    assert problems(row) == []
    return row


def test_nan_in_one_rank_is_a_skipped_step_of_all(broken: tuple[Lab, dict[str, str | None]]) -> None:
    lab, ended = broken
    assert ended["nan"] is None
    row = row_of(lab, "nan")
    assert (row["status"], row["nonfinite_steps"], row["injected_fault"]) == ("ok", 1, "nan:rank=1,step=3")
    assert row_of(lab, "untouched")["injected_fault"] is None


def test_nan_for_ever_ends_the_run_and_says_so(broken: tuple[Lab, dict[str, str | None]]) -> None:
    lab, ended = broken
    assert "3 steps in a row" in str(ended["nan for ever"])
    assert row_of(lab, "nan for ever")["status"] == "failed"


@pytest.mark.parametrize("when", ["signal in validation", "signal while tokenising"])
def test_a_signal_is_heeded_outside_of_steps_too(broken: tuple[Lab, dict[str, str | None]], when: str) -> None:
    lab, ended = broken
    assert str(ended[when]).startswith("Preempted")
    assert row_of(lab, when)["status"] == "preempted"


def test_a_run_stopped_while_tokenising_begins_again(broken: tuple[Lab, dict[str, str | None]]) -> None:
    lab, ended = broken
    assert ended["begun again"] is None
    rows = [row["status"] for row in lab.rows() if row["run_name"] == "signal-while-tokenising"]
    assert rows == ["preempted", "ok"]


def test_a_signal_in_validation_leaves_a_checkpoint(broken: tuple[Lab, dict[str, str | None]]) -> None:
    lab, _ = broken
    assert row_of(lab, "signal in validation")["saved_step"] == 6
    assert (lab.folder / "out/runs/signal-in-validation/checkpoints/latest/manifest.json").is_file()


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(broken: tuple[Lab, dict[str, str | None]]) -> None:
    lab, ended = broken
    assert ended["full disk, checkpoint"] is None
    row, untouched = row_of(lab, "full disk, checkpoint"), row_of(lab, "untouched")
    assert (row["saves"], row["failed_saves"], row["saved_step"]) == (1, 1, 3)
    assert row["train_loss"] == untouched["train_loss"]
    assert [path.name for path in (lab.folder / "out/runs/full-disk-checkpoint/checkpoints").glob("step-*")] == [
        "step-00000003"
    ]


def test_a_row_that_the_disk_does_not_take_is_complained_of_last(broken: tuple[Lab, dict[str, str | None]]) -> None:
    lab, ended = broken
    assert str(ended["full disk, row"]).startswith("OSError: [Errno 28]")
    assert "full-disk-row" not in [row["run_name"] for row in lab.rows()]
    assert (lab.folder / "out/runs/full-disk-row/final_model/config.json").is_file(), "the model is saved all the same"


def test_a_bad_fault_is_a_bad_setting(broken: tuple[Lab, dict[str, str | None]]) -> None:
    assert "rank=" in str(broken[1]["bad"])


def test_a_truncated_results_file_costs_no_row(broken: tuple[Lab, dict[str, str | None]]) -> None:
    lab, _ = broken
    assert len(lab.rows_file.read_text().splitlines()) == len(lab.rows()) == 9
    assert FRAGMENT in (lab.folder / "results.jsonl.rejected").read_text()


# ---- what ends processes


HANGS = {
    "hang:rank=1,step=4": ["rank 1 did not arrive: step 4, step, for", "fsdp_lab/ranks/faults.py:", "rank 0 waits"],
    "stop:rank=1,step=4": ["rank 1 did not arrive: its process is stopped (SIGSTOP)", "rank 0 waits"],
}


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Lab, int, str]]:
    """A run with each fault: its folder, exit code and complaint. Side by side: for most of the time they wait."""
    labs, runs = {fault: Lab(tmp_path_factory.mktemp("hung")) for fault in HANGS}, {}
    with ExitStack() as stack:
        for fault, lab in labs.items():
            environments = [{**environment, VARIABLE: fault} for environment in torchrun_environment(2)]
            flags = lab.flags(hang_timeout_s=8, save_model="false")
            runs[fault] = stack.enter_context(started_program(train_tiny, [flags] * 2, environments))
        ended = {fault: run(120) for fault, run in runs.items()}
    return {fault: (labs[fault], code, said) for fault, (code, _, said) in ended.items()}


@pytest.mark.parametrize(("fault", "words"), HANGS.items())
def test_a_rank_that_hangs_is_named_with_its_line(
    hung: dict[str, tuple[Lab, int, str]], fault: str, words: list[str]
) -> None:
    lab, code, said = hung[fault]
    assert code == 1
    (row,) = lab.rows()
    assert row["status"] == "failed"
    for word in ("no progress for", *words):
        assert word in said
        assert word in row["error"]
    assert "nothing was saved: start anew" in said
    assert "fsdp_lab.train: no progress for" in said


def test_a_killed_launcher_leaves_no_orphans_and_a_row(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    process = start_endless(lab)
    ranks = [child.pid for child in psutil.Process(process.pid).children()]
    assert len(ranks) == 2
    process.kill()
    wait_until(lambda: not any(map(is_running, ranks)))
    _, err = process.communicate(timeout=60)
    (row,) = lab.rows()
    assert row["status"] == "preempted", row["error"]
    assert row["saved_step"] > 0
    assert not re.search(r"frame #|Exception raised from|Traceback", err), "pages around the message"
    assert "stopped by SIGTERM" in err


def test_a_closed_terminal_is_a_signal_to_stop(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    flags = lab.flags(run_name="closed", max_steps=100_000, log_interval=1, save_model="false")
    drill = Drill(flags, 2, in_terminal=True)
    ended = drill.follow(closes_terminal_at(drill, 3), timeout_s=240)
    assert (ended.code, ended.left) == (143, [])
    (row,) = lab.rows()
    assert (row["status"], row["error"]) == ("preempted", "stopped by SIGHUP")
    assert row["saved_step"] >= 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [("kill:rank=0,at=tokenize", "rank 0 died"), ("kill:rank=1,at=tokenize", "rank 1 died")],
)
def test_a_run_that_lost_a_rank_while_tokenising_begins_again(tmp_path: Path, fault: str, words: str) -> None:
    lab = Lab(tmp_path)
    # rank 0 may be connecting to the dead one, where it hears of nothing: it is given up after the grace
    settings = {"run_name": "early", "max_steps": 2, "save_model": "false", "stop_grace_s": 2}
    process = lab.fork(fault=fault, **settings)
    _, err = process.communicate(timeout=120)
    (row,) = lab.rows()
    assert (process.returncode, row["status"], forked_ranks(process.pid)) == (1, "failed", {})
    assert row["error"].startswith(words)
    assert re.search(r"^fsdp_lab.train: .*begins again", err, re.M)
    assert "frame #" not in err
    code, _, said = lab.run(**settings)
    assert code == 0, said
    assert [row["status"] for row in lab.rows()] == ["failed", "ok"]


@pytest.mark.parametrize("dead", [0, 1])
def test_of_the_ranks_that_are_left_one_says_which_died(tmp_path: Path, dead: int) -> None:
    lab = Lab(tmp_path)
    process = lab.fork(3, fault=f"kill:rank={dead},step=3", save_model="false")
    _, err = process.communicate(timeout=120)
    (row,) = lab.rows()
    assert (process.returncode, row["status"]) == (1, "failed")
    assert err.count(f"fsdp_lab.train: rank {dead} died; nothing was saved") == 1, err


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_hears_of_it_late_does_not_say_again_which_died(tmp_path: Path, dead: int) -> None:
    """By then the rank that said it has left, and must not be taken for dead too."""
    lab = Lab(tmp_path)
    faults = f"kill:rank={dead},step=3; hang:rank=2,step=3,s=5"
    process = lab.fork(3, fault=faults, save_model="false")
    _, err = process.communicate(timeout=120)
    (row,) = lab.rows()
    assert (process.returncode, row["status"]) == (1, "failed")
    assert err.count(" died") == err.count(f"fsdp_lab.train: rank {dead} died; nothing was saved") == 1, err


def test_rank_0_killed_over_the_row_leaves_a_failed_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    process = lab.fork(fault="kill:rank=0,at=row", max_steps=2, save_model="false")
    process.communicate(timeout=120)
    (row,) = lab.rows()
    assert (process.returncode, row["status"]) == (1, "failed")
    assert row["error"].startswith("rank 0 died")


def test_rank_0_killed_over_the_row_of_a_stopped_run_leaves_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    process = lab.fork(fault="usr2:rank=1,step=2; kill:rank=0,at=row", save_model="false")
    process.communicate(timeout=120)
    (row,) = lab.rows()
    assert (process.returncode, row["status"]) == (1, "failed")
    assert row["error"].startswith("rank 0 died; stopped by SIGUSR2")


def test_a_run_is_not_started_twice(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    process = start_endless(lab, save_steps=1)
    try:
        code, _, err = lab.run(run_name="endless")
        assert code == 2
        assert f"is being written by process {forked_ranks(process.pid).get(0)} on " in err
        assert "Traceback" not in err
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 143
    (row,) = lab.rows()
    assert (row["status"], row["error"]) == ("preempted", "stopped by SIGTERM")


def test_of_two_that_start_together_one_runs(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    both = [lab.fork(ranks=1, run_name="both", max_steps=3, save_steps=1, save_model="false") for _ in range(2)]
    said = [process.communicate(timeout=180)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes == [0, 2], said  # or the second came when the first had finished: refused as well
    assert [row["status"] for row in lab.rows()] == ["ok"]


def closes_terminal_at(drill: Drill, step: int) -> Callable[[str], bool]:
    """When the progress bar has come to ``step``."""

    def on_line(line: str) -> bool:
        found = re.search(r"(\d+)/\d+ \[", line)
        if found is None or int(found[1]) < step:
            return False
        drill.close_terminal()
        return True

    return on_line


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT"])
def test_a_rank_alone_that_is_told_to_stop_stops_all(broken: tuple[Lab, dict[str, str | None]], name: str) -> None:
    lab, ended = broken
    assert str(ended[name]) == f"Preempted: {name} to rank 1"
    row = row_of(lab, name)
    assert (row["status"], row["saved_step"]) == ("preempted", 4)


def test_an_occupied_port_is_one_message() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "fsdp_lab.launch", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
        command += [f"--master-port={port}", "-m", "--", "platform"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert port in done.stderr
    assert "taken by another program" in done.stderr
    assert "Traceback" not in done.stderr


# ---- names never lead out of the folders


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", "..", ".", ".hidden", "a\0b", "a\n", ""])
def test_a_run_name_names_one_folder(name: str) -> None:
    from fsdp_lab.settings.config import TrainConfig

    with pytest.raises(ConfigError, match="run_name"):
        TrainConfig.of(run_name=name)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "weights/../../evil"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, name: str) -> None:
    from fsdp_lab.checkpoint.files.folder import MANIFEST, CheckpointError, FileEntry, Manifest

    manifest = Manifest(1, 1, "2", {}, (FileEntry(name, 0, ""),))
    (tmp_path / MANIFEST).write_bytes(manifest.to_bytes())
    with pytest.raises(CheckpointError, match="outside"):
        Manifest.read(tmp_path)


def test_the_summary_of_a_soak_finds_what_is_wrong() -> None:
    from experiments.faults.soak import Start, is_clean

    flat = [(2.0 * i, 10**9 + (5 if i % 2 else 0)) for i in range(100)]
    leak = [(2.0 * i, 10**9 + i * 1_000_000) for i in range(100)]  # 1 MB every 2 s
    start = Start("left alone", memory={0: flat, 1: leak, 2: flat[:5]})
    assert start.slopes() == [pytest.approx(0, abs=0.01), pytest.approx(1800)]
    assert start.levels() == {0: [1000, 1000], 1: [1036, 1092]}  # of samples 30 to 43 and 86 to 99
    good = {"finished": True, "rows_refused": [], "processes_left": [], "files_left": [], "failed_saves": 0}
    good |= {"events": {"launcher SIGKILL": 1}, "temporary_left": ["x"], "starts_without_row": 0}
    assert is_clean(good)
    for name, wrong in (("finished", False), ("processes_left", ["x"]), ("temporary_left", ["x", "y"])):
        assert not is_clean({**good, name: wrong}), name
    assert json.dumps(good)
