"""Who can reach a run over the network: on one machine nobody, as no process of it listens but on 127.0.0.1."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from fsdp_lab.ranks.distributed import join
from tests.distributed import free_port, run_program, torchrun_environment
from tests.forked_launch import Launched
from tests.fsdp_lab.test_train import ROOT, Lab, lab, start_endless, wait_until
from tests.fsdp_lab.training_ranks import make_nano_tiny

__all__ = ["lab"]  # pytest finds the fixture here


def listening(pids: Iterable[int]) -> list[str]:
    """The addresses that processes listen on, and UDP ports that they have open."""
    found = []
    for pid in pids:
        for connection in psutil.Process(pid).net_connections(kind="inet"):
            is_open = connection.status == psutil.CONN_LISTEN or connection.type.name == "SOCK_DGRAM"
            found += [connection.laddr.ip] * is_open
    return found


def is_for_us_alone(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def with_children(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def test_this_test_sees_a_port_that_is_open_to_the_network() -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert not all(map(is_for_us_alone, listening([os.getpid()]))), "torch's own listens on all addresses"
    del store


def test_no_process_of_a_run_listens_to_the_network(lab: Lab) -> None:
    process = start_endless(lab, save_steps=2, hang_timeout_s=50)
    try:
        addresses = listening(with_children(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert len(addresses) >= 3, "the launcher's store, and gloo of two ranks"
    assert all(map(is_for_us_alone, addresses)), addresses


def say_where_it_listens() -> None:
    from fsdp_lab.settings.config import TrainConfig

    with join(TrainConfig.of(timeout_s=30)) as ranks:
        addresses = listening([os.getpid()])
        said = ranks.gather(addresses)
        if ranks.is_first:
            print(*[address for of_rank in said for address in of_rank])
        sys.stdout.flush()
        os._exit(0)


@pytest.mark.parametrize("world", [1, 2])
def test_nor_do_ranks_that_were_started_without_the_launcher(world: int) -> None:
    code, out, err = run_program(say_where_it_listens, [[]] * world, torchrun_environment(world))
    assert code == 0, err
    addresses = out.split()
    assert len(addresses) >= world
    assert all(map(is_for_us_alone, addresses)), addresses


def test_nor_does_tensorboard(tmp_path: Path) -> None:
    script = 'source scripts/tensorboard.sh; serve_tensorboard "$0" "$1" "$(free_port 6100)" 127.0.0.1'
    process = subprocess.Popen(
        ["bash", "-c", script, sys.executable, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "TENSORBOARD_DELAY_S": "0"},
        start_new_session=True,
    )
    try:
        wait_until(lambda: listening(with_children(process.pid)) != [])
        assert all(map(is_for_us_alone, listening(with_children(process.pid))))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_several_nodes_still_meet(lab: Lab) -> None:
    port = str(free_port())
    nodes = []
    for node in (0, 1):
        words = ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
        words += [f"--master-port={port}", "-m", "--", "fsdp_lab.train"]
        words += lab.flags(run_name="nodes", max_steps=2, save_model="false")
        nodes.append(Launched(words, 1, os.environ, lab.folder, make_nano_tiny))
    said = [node.communicate(timeout=120)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    (row,) = lab.rows()
    assert row["world_size"] == 2


AGAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(3)
os.write(1, f"second time {int(total)}\\n".encode())
os._exit(0)
"""


def test_ranks_that_are_started_again_meet_again(tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(AGAIN)
    command = [sys.executable, "-m", "fsdp_lab.launch", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = subprocess.run([*command, str(tmp_path / "again.py")], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("second time 2") == 2
