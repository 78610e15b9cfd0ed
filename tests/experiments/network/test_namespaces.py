"""Laws of emulated links: bytes are counted as sent, rates hold, and nothing is left behind."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from experiments.network.leftovers import own_tag, remove, remove_leftovers
from experiments.network.namespaces import Namespaces, UnavailableError, _command, unavailable
from fsdp_lab.ranks.link import Link

ROOT = Path(__file__).resolve().parents[3]

# Every rank sends its entry of argv[1] (bytes) to the next and writes the bits per second it received to argv[2]/RANK;
# argv[3] ranks share an address.
RING = """
import os, socket, sys, threading, time
rank, world, sizes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), eval(sys.argv[1])
peer, per_node = (rank + 1) % world, int(sys.argv[3])
network = os.environ["MASTER_ADDR"].rpartition(".")[0]
server = socket.create_server(("", 5000 + rank))
def send():
    for _ in range(200):
        try:
            with socket.create_connection((f"{network}.{peer // per_node + 1}", 5000 + peer)) as to:
                return to.sendall(bytes(sizes[rank]))
        except ConnectionRefusedError:  # not there yet
            time.sleep(0.02)
sender = threading.Thread(target=send)
sender.start()
source, start, got = server.accept()[0], time.perf_counter(), 0
while part := source.recv(1 << 20):
    got += len(part)
assert got == sizes[rank - 1]
open(f"{sys.argv[2]}/{rank}", "w").write(str(8 * got / (time.perf_counter() - start)))
sender.join()
"""


def namespaces() -> str:
    return subprocess.check_output(["ip", "netns", "list"], text=True)


def ring(folder: Path, *sizes: int, per_node: int = 1) -> list[str]:
    return [sys.executable, "-c", RING, str(sizes), str(folder), str(per_node)]


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.netns
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_known_payload_is_counted_to_two_percent(tmp_path: Path, ranks: int) -> None:
    sizes = [2_000_000 + 1_000_000 * rank for rank in range(ranks)]
    sent, received = [], []
    for _ in range(4):  # a busy machine makes TCP send some segments twice: the least count is the payload's
        with Namespaces(ranks) as net:
            assert net.run(ring(tmp_path, *sizes)) == 0
            sent.append([net.tx_bytes(rank) for rank in range(ranks)])
            received.append([net.rx_bytes(rank) for rank in range(ranks)])
    for rank, size in enumerate(sizes):
        assert size <= min(count[rank] for count in sent) < 1.02 * size
        assert sizes[rank - 1] <= min(count[rank] for count in received) < 1.02 * sizes[rank - 1]


@pytest.mark.netns
def test_a_shaped_link_has_its_rate_and_two_directions(tmp_path: Path) -> None:
    def mbit_per_s(rank: int) -> float:
        return float((tmp_path / str(rank)).read_text()) / 1e6

    with Namespaces(2, rate="80mbit") as net:
        assert net.run(ring(tmp_path, 4_000_000, 0)) == 0
        assert 0.5 * 80 < mbit_per_s(1) < 1.1 * 80
        assert net.run(ring(tmp_path, 4_000_000, 4_000_000)) == 0
    assert max(mbit_per_s(0), mbit_per_s(1)) < 1.1 * 80


@pytest.mark.netns
def test_a_node_is_fast_inside_and_has_one_link_to_the_others(tmp_path: Path) -> None:
    with Namespaces(4, rate="80mbit", per_node=2) as net:
        places = [[net.environment(rank)[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")] for rank in range(4)]
        assert places == [["0", "2"], ["1", "2"], ["0", "2"], ["1", "2"]]
        assert net.address(0) == net.address(1) != net.address(2) == net.address(3)
        assert net.run(ring(tmp_path, *[4_000_000] * 4, per_node=2)) == 0
        for first in (0, 2):
            assert 4e6 <= net.tx_bytes(first) < 4.5e6  # rank 1's to rank 2, rank 3's to rank 0
            assert 4e6 <= net.inside_bytes(first) < 4.5e6
    mbit_per_s = [float((tmp_path / str(rank)).read_text()) / 1e6 for rank in range(4)]
    assert max(mbit_per_s[0], mbit_per_s[2]) < 1.1 * 80
    assert min(mbit_per_s[1], mbit_per_s[3]) > 2 * 80


@pytest.mark.netns
def test_the_rate_is_measured_and_the_ranks_are_told() -> None:
    with Namespaces(2, rate="80mbit") as net:
        assert Link(**json.loads(net.environment(0)["FSDP_LAB_LINK"])) == Link(80e6, None, 0, ranks=2)
        measured = net.measure()
        assert measured is not None
        assert 0.5 * 80e6 < measured < 80e6
        assert json.loads(net.environment(1)["FSDP_LAB_LINK"])["rate_measured"] == measured
    with Namespaces(2, per_node=2) as net:
        assert net.measure() is None


@pytest.mark.netns
def test_after_kill_9_the_ranks_die_and_the_next_start_removes_the_rest(tmp_path: Path) -> None:
    rank = "sleep 300 & echo $! > child$RANK.part; mv child$RANK.part child$RANK; echo $$ > rank$RANK; wait"
    command = [sys.executable, "-m", "experiments.links", "--", "sh", "-c", rank]
    with started(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}) as run:
        eventually(lambda: len(list(tmp_path.glob("rank?"))) == 2)
        ranks, children = ([int((tmp_path / f"{n}{r}").read_text()) for r in (0, 1)] for n in ("rank", "child"))
        run.kill()
        eventually(lambda: not any(map(alive, ranks)))  # before its parent has even asked for its exit code
        assert all(map(alive, children))
        assert f"links{run.pid}-" in namespaces()
        with Namespaces(1):
            assert f"links{run.pid}-" not in namespaces()
            eventually(lambda: not any(map(alive, children)))


@contextmanager
def started(command: list[str], **popen: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that does not outlive the test, however that ends; with it its ranks die."""
    process = subprocess.Popen(command, **popen)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.netns
def test_only_what_a_dead_process_made_is_left_over() -> None:
    owner, start, where, _ = own_tag().split("-")
    kept = [f"{owner}-{start}-{where}-0a-n0", f"{owner}-{start}-1-0b-n0", "links-of-somebody-else"]
    left = [f"{owner}-{int(start) - 1}-{where}-0c-n0", f"links{2**22 + 1}-{start}-{where}-0d-sw"]  # pid reused; no such
    try:
        for name in (*kept, *left):
            subprocess.run(["ip", "netns", "add", name], check=True)
        assert set(left) <= set(remove_leftovers())
        there = namespaces()
        assert [name in there for name in (*kept, *left)] == [True] * 3 + [False] * 2
    finally:
        for name in (*kept, *left):
            remove(name)


@pytest.mark.netns
def test_the_first_failure_is_returned_and_ends_the_others() -> None:
    with Namespaces(3) as net:
        assert net.name(2) in namespaces()
        start = time.monotonic()
        assert net.run(["sh", "-c", "[ $RANK != 1 ] || exit 7; sleep 60"], grace_s=0.1) == 7
        assert time.monotonic() - start < 10
    assert net.name(0) not in namespaces()


@pytest.mark.netns
def test_a_delay_is_added_each_way(tmp_path: Path) -> None:
    try:
        with Namespaces(2, delay="20ms") as net:
            start = time.monotonic()
            assert net.run(ring(tmp_path, 1000, 1000)) == 0
            assert time.monotonic() - start > 0.06  # connect: there and back; data: there
    except UnavailableError as error:
        pytest.skip(str(error))  # the message is tested below


@pytest.mark.netns
def test_two_runs_coexist_and_leave_nothing(tmp_path: Path) -> None:
    with Namespaces(2) as one, Namespaces(2) as two:
        assert one.run(ring(tmp_path, 1000, 1000)) == two.run(ring(tmp_path, 9000, 9000)) == 0
        assert one.tx_bytes(0) < two.tx_bytes(0)
        names = [net.name(rank) for net in (one, two) for rank in (0, 1)]
        assert len(set(names)) == 4
    assert not [name for name in names if name in namespaces()]


@pytest.mark.netns
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_the_ranks_save_and_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    rank = 'trap "sleep 0.2; touch saved$RANK; exit 0" TERM; touch ready$RANK; while :; do sleep 0.05; done'
    command = [sys.executable, "-m", "experiments.links", "--", "sh", "-c", rank]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    heard = functools.partial(signal.signal, number, signal.SIG_DFL)  # ignored when the tests run in the background
    with started(command, cwd=tmp_path, env=environment, preexec_fn=heard) as run:
        eventually(lambda: len(list(tmp_path.glob("ready*"))) == 2)
        assert f"links{run.pid}-" in namespaces()
        run.send_signal(number)
        assert run.wait(60) == 128 + number
    assert len(list(tmp_path.glob("saved*"))) == 2
    assert f"links{run.pid}-" not in namespaces()


def test_without_root_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in (unavailable() or "")


def test_without_iproute2_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "install iproute2" in (unavailable() or "")


def test_without_netem_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 2, "", "Error: Specified qdisc kind is unknown.")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(UnavailableError, match="no netem"):
        _command("tc", "qdisc", "add", "dev", "p0", "root", "netem", "delay", "20000us")
