"""Blocks shared out among threads: each once, whoever runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from comm_compress.kernels.tools import threads
from comm_compress.kernels.tools.threads import WORTH_SHARING, Team, openmp_team, over_blocks, pool_team


@pytest.fixture(params=["openmp", "pool"])
def team(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """Each in turn, with three threads."""
    found = openmp_team()
    if request.param == "openmp" and found is None:
        pytest.skip("this torch brings no GNU OpenMP")
    monkeypatch.setattr(threads, "openmp_team", lambda: found if request.param == "openmp" else None)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield found if request.param == "openmp" and found is not None else pool_team
    torch.set_num_threads(before)


@pytest.mark.skipif(sys.platform != "linux", reason="wheels for other systems bring other libraries")
def test_torchs_own_threads_are_found() -> None:
    assert "OpenMP" in torch.__config__.parallel_info()
    assert openmp_team() is not None, "or kernels share cores with workers that spin"


@pytest.mark.parametrize("num_blocks", [0, 1, 2, 3, 7, 1000])
def test_every_block_is_seen_once(team: Team, num_blocks: int) -> None:
    seen = Counter[int]()
    lock = threading.Lock()

    def look(first: int, last: int, mark: str) -> None:
        assert mark == "given"
        with lock:
            seen.update(range(first, last))

    over_blocks(look, num_blocks, WORTH_SHARING, "given")
    assert seen == Counter(range(num_blocks))


@pytest.mark.parametrize("number", [1, 2, 3, 50])
def test_a_team_does_all_its_work(team: Team, number: int) -> None:
    seen = list[int]()
    team(seen.append, number)
    assert sorted(seen) == list(range(number))


def test_fewer_threads_than_asked_for_do_all_the_work() -> None:
    program = (
        "import torch; torch.set_num_threads(3)\n"
        "from comm_compress.kernels.tools.threads import openmp_team, pool_team\n"
        "seen = []; (openmp_team() or pool_team)(seen.append, 50); print(sorted(seen) == list(range(50)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OMP_THREAD_LIMIT": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "True\n", done.stderr


def test_threads_work_side_by_side(team: Team) -> None:
    """Each waits for the others: one after another they would never get past this."""
    together = threading.Barrier(3, timeout=60)

    def meet(_: int) -> None:
        together.wait()

    team(meet, 3)


@pytest.mark.parametrize("failing", [0, 2])
def test_what_a_part_raises_reaches_the_caller(team: Team, failing: int) -> None:
    """After the others are done: they write to memory that is the caller's."""
    done = list[int]()

    def work(part: int) -> None:
        if part == failing:
            raise ValueError(f"part {part}")
        done.append(part)

    with pytest.raises(ValueError, match=f"part {failing}"):
        team(work, 3)
    assert sorted([*done, failing]) == [0, 1, 2]
    team(done.append, 3)  # and the team can go on
    assert len(done) == 5


class InterruptError(Exception):
    """What the handler below raises."""


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """A handler that raises, and a list of the alarms that it saw."""
    seen = list[int]()

    def handler(number: int, _: object) -> None:
        seen.append(number)
        raise InterruptError

    before = signal.signal(signal.SIGALRM, handler)
    yield seen
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("team", ["openmp"], indirect=True)
def test_an_interrupt_reaches_the_caller(team: Team, alarms: list[int]) -> None:
    """Wherever a handler raises: no part is left out in silence, and nobody still writes when the caller knows."""
    raised = 0
    for attempt in range(400):
        begun, ended = list[int](), list[int]()

        def part(i: int, begun: list[int] = begun, ended: list[int] = ended) -> None:
            begun.append(i)
            if threading.current_thread() is not threading.main_thread():
                time.sleep(2e-4)
            ended.append(i)

        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + attempt % 40 * 1e-5)
            team(part, 6)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except InterruptError:
            raised += 1
            assert len(begun) - len(ended) <= 1, "the part that the main thread was in"
        else:
            assert sorted(ended) == list(range(6))
    assert raised == len(alarms) > 0


def test_any_thread_may_ask(team: Team) -> None:
    """Collectives run where autograd runs; several at once too."""
    seen = list[int]()
    with ThreadPoolExecutor(2) as pool:
        for asked in [pool.submit(team, seen.append, 3) for _ in range(10)]:
            asked.result(timeout=60)
    assert Counter(seen) == Counter({0: 10, 1: 10, 2: 10})


def test_beside_torchs_own_work(team: Team) -> None:
    """Teams of its size and of others, in turns."""
    x = torch.arange(1 << 20, dtype=torch.float64)
    for number in (2, 3, 5, 3):
        seen = list[int]()
        team(seen.append, number)
        assert len(seen) == number
        assert float(x.sum()) == (1 << 20) * ((1 << 20) - 1) / 2
