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
from fsdp_lab.ranks.forked import FORKING, Seat, seated, start_again

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


def _seat() -> Seat:
    """A process that takes a word and ends with it as its exit code, or is killed by SIGKILL for a 9."""
    theirs, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os._exit(7 if os.read(theirs, 1) else 3)
    os.close(theirs)
    return Seat(pid, ours)


@pytest.fixture
def seat() -> Iterator[Seat]:
    made = _seat()
    yield made
    if made.poll() is None:
        os.kill(made.pid, signal.SIGKILL)
        made.wait()


def test_a_seat_waits_and_ends_as_a_process_does(seat: Seat) -> None:
    assert seat.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        seat.wait(0.05)
    assert seat.take(["x"], {}).wait(20) == 7
    assert (seat.poll(), seat.returncode) == (7, 7)
    killed = _seat()
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    os.close(killed.pipe)


def test_a_seat_ends_with_its_launcher(seat: Seat) -> None:
    os.close(seat.pipe)
    assert seat.wait(20) == 3


def test_only_our_trainer_s_ranks_sit_down_and_when_no_seat_is_left_processes_start(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(SubprocessHandler, "_popen", lambda self, args, env: started.append(args))
    before, seats = SubprocessHandler._popen, [seat]
    python, words = sys.executable, ("-u", "-m", "fsdp_lab.train", "--seed", "1")
    with seated("fsdp_lab.train", seats):
        for args in (("numactl", python, *words), (python, "-u", "other.py"), (python, *words), (python, *words)):
            handler = SubprocessHandler(args[0], args[1:], {"RANK": "0"}, None, None, 0, None)
            assert (handler.proc is seat) == (args[0] == python and "-m" in args and len(started) == 2)
            if handler.proc is seat:
                started.append(("seat",))
    assert [args[0] for args in started] == ["numactl", python, "seat", python]
    assert SubprocessHandler._popen is before
    assert forked.TRAINERS[0] == "fsdp_lab.train"
