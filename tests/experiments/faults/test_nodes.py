"""The drill over several machines: the machines are apart, and what is promised is checked. Runs are the drill's."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.faults import nodes
from experiments.faults.machines import Machines, Program
from experiments.faults.nodes import CASES, Case


@pytest.mark.netns
def test_machines_have_names_addresses_and_processes_of_their_own() -> None:
    asked = "hostname; getent hosts node1 | tr -s ' '; ip -4 -o addr show eth0 | grep -o 'inet [0-9.]*'; "
    asked += "ls /proc | grep -c ^[0-9]"
    seen: list[tuple[int, str]] = []
    with Machines(2) as machines:
        commands = [["sh", "-c", asked], ["sh", "-c", f"{asked}; exit 7"]]
        programs = machines.run(commands, on_line=lambda machine, line: seen.append((machine, line)))
    assert [done.code for done in programs] == [0, 7]
    for number, done in enumerate(programs):
        name, peer, address, processes = done.output
        assert (name, peer, address) == (f"node{number}", "10.77.0.2 node1", f"inet 10.77.0.{number + 1}")
        assert int(processes) < 10, "only what was started there"
        assert [line for machine, line in seen if machine == number] == done.output


@pytest.mark.netns
def test_a_program_that_does_not_end_is_killed_with_all_that_it_started() -> None:
    start = time.monotonic()
    with Machines(1) as machines:
        (done,) = machines.run([["sh", "-c", "sleep 1000 & echo there; sleep 1000"]], timeout_s=2)
    assert time.monotonic() - start < 20
    assert done.output == ["there"]


def ended(code: int | None, *output: str) -> Program:
    return Program(code, 5.0, list(output))


def outcome(case: Case, programs: list[Program], folder: Path) -> nodes.Outcome:
    folders = [folder / f"node{number}" for number in range(case.machines)]
    return nodes._outcome("case", case, programs, folders, None, [2.0] if case.has_begun else [])


def test_a_promise_is_kept_only_when_every_machine_names_the_rank_and_one_row_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("hand", 3, fault="kill:rank=2", codes=(1, 1, 137), named="rank 2 died")
    monkeypatch.setattr(nodes, "_rows", lambda folder: [{"status": "failed", "error": "e"}] * (folder.name == "node0"))
    good = [ended(1, "step 7", "fsdp_lab.train: rank 2 died (on node2); nothing was saved")] * 2 + [ended(137)]
    assert outcome(case, good, tmp_path).as_promised
    assert outcome(case, good, tmp_path).seconds == 3.0
    silent = [good[0], ended(1, "Connection closed by peer"), good[2]]
    assert not outcome(case, silent, tmp_path).as_promised
    assert not outcome(case, [good[0], replace(good[1], code=0), good[2]], tmp_path).as_promised
    monkeypatch.setattr(nodes, "_rows", lambda folder: [])
    assert not outcome(case, good, tmp_path).as_promised


def test_what_was_said_last_is_shown_with_its_lines() -> None:
    output = ["fsdp_lab.train: a problem with the settings", "  batch_size: rank 0 has 2, rank 1 has 4", "else"]
    assert nodes._complaint(output) == "a problem with the settings / batch_size: rank 0 has 2, rank 1 has 4"
    assert nodes._complaint(["step 7", "rank 1 was killed by SIGKILL"]) == "rank 1 was killed by SIGKILL"


def test_every_case_promises_something_of_every_machine() -> None:
    for name, case in CASES.items():
        assert len(case.codes) in (0, case.machines), name
        assert bool(case.codes) == bool(case.named), name


def test_a_case_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        nodes.main(["--cases", "by foot"])
    assert refused.value.code == 2
    assert "--cases: no 'by foot'; there are torchrun, 2 machines;" in capsys.readouterr().err
