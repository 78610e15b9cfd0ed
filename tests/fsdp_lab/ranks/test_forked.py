"""Which launchers start anew to fork their ranks, and that a forked process is to torchrun what a started one is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from fsdp_lab.ranks import forked
from fsdp_lab.ranks.forked import FORKING, WaitingRank, start_again, started_by_torchrun

OURS = ["-m", "--", "fsdp_lab.train", "--max_steps", "3"]


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environments in which the process would have been started anew."""
    found: list[dict[str, str]] = []
    monkeypatch.setattr("os.execve", lambda program, words, environment: found.append(environment))
    for name in (FORKING, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    return found


@pytest.mark.parametrize("flag", [["--nproc-per-node=4"], ["--nproc_per_node", "4"]])
def test_a_launcher_of_our_trainer_starts_anew_once(flag: list[str], anew: list[dict[str, str]]) -> None:
    start_again(["--standalone", *flag, *OURS])
    (environment,) = anew
    assert (environment[FORKING], environment["OMP_NUM_THREADS"]) == ("4", "2")
    os.environ[FORKING] = environment[FORKING]
    start_again(["--standalone", *flag, *OURS])
    assert len(anew) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--nproc-per-node=4", "-m", "--", "some.program", "fsdp_lab.txt"],
        ["--nproc-per-node=4", "fsdp_lab/train.py"],
        ["--nproc-per-node=gpu", *OURS],
        OURS,
        ["--nproc-per-node=4", "program.py", "--nproc-per-node=4"],
    ],
)
def test_no_other_launcher_does(words: list[str], anew: list[dict[str, str]]) -> None:
    start_again(words)
    assert not anew


def _waiting_rank() -> WaitingRank:
    """A process that takes a word and ends with it as its exit code, or is killed by SIGKILL for a 9."""
    theirs, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os._exit(7 if os.read(theirs, 1) else 3)
    os.close(theirs)
    return WaitingRank(pid, ours)


@pytest.fixture
def rank() -> Iterator[WaitingRank]:
    made = _waiting_rank()
    yield made
    if made.poll() is None:
        os.kill(made.pid, signal.SIGKILL)
        made.wait()


def test_a_waiting_rank_waits_and_ends_as_a_process_does(rank: WaitingRank) -> None:
    assert rank.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        rank.wait(0.05)
    assert rank.take(["x"], {}).wait(20) == 7
    assert (rank.poll(), rank.returncode) == (7, 7)
    killed = _waiting_rank()
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    os.close(killed.pipe)


def test_a_waiting_rank_ends_with_its_launcher(rank: WaitingRank) -> None:
    os.close(rank.pipe)
    assert rank.wait(20) == 3


def test_only_our_trainer_s_ranks_are_forked_ones_and_processes_start_when_none_is_left(
    rank: WaitingRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(SubprocessHandler, "_popen", lambda self, args, env: started.append(args))
    before, waiting = SubprocessHandler._popen, [rank]
    python, words = sys.executable, ("-u", "-m", "fsdp_lab.train", "--seed", "1")
    with started_by_torchrun("fsdp_lab.train", waiting):
        for args in (("numactl", python, *words), (python, "-u", "other.py"), (python, *words), (python, *words)):
            handler = SubprocessHandler(args[0], args[1:], {"RANK": "0"}, None, None, 0, None)
            assert (handler.proc is rank) == (args[0] == python and "-m" in args and len(started) == 2)
            if handler.proc is rank:
                started.append(("forked",))
    assert [args[0] for args in started] == ["numactl", python, "forked", python]
    assert SubprocessHandler._popen is before
    assert forked.TRAINERS[0] == "fsdp_lab.train"
