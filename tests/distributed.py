"""Real ranks for tests: processes over gloo, forked from a server that has imported what they need."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED, _LAST = ["tests.preloaded"], "tests.frozen"
_CONTEXT.set_forkserver_preload([*_PRELOADED, _LAST])


def preload(module: str) -> None:
    """Have the server import ``module`` too; to be called while tests are collected, before the first rank."""
    _PRELOADED.append(module)
    _CONTEXT.set_forkserver_preload([*_PRELOADED, _LAST])


def run_ranks(world: int, function: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
    """``function(*args)`` on ``world`` ranks of a gloo group; the list of what they returned (picklable, no tensors
    on exit paths). An exception on any rank fails the test with that rank's traceback."""
    with TemporaryDirectory() as folder:
        return answers(world, _rank, world, folder, function, args, timeout=timeout)


def answers(world: int, target: Callable[..., None], *args: Any, timeout: float) -> list[Any]:
    """What ``world`` processes ``target(rank, *args, pipe)`` send through their pipes: (True, answer), or (False, why)
    to fail the test. They are killed when all have answered."""
    pipes, processes = [], []
    for rank in range(world):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=target, args=(rank, *args, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        return _collect(pipes, timeout)
    finally:
        for process in processes:
            process.kill()
            process.join()


def run_program(
    program: Callable[[], Any],
    arguments: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    timeout: float = 120,
) -> tuple[int, str, str]:
    """``program()`` as one process a rank, each with its own command-line arguments and additions to the environment.

    Returns rank 0's exit code and what all ranks wrote to stdout and stderr. The other ranks must end with 0 too,
    unless rank 0 failed: then they are killed, which is what torchrun would do. It saves torchrun and its ranks their
    imports (5 s each), and so cannot show how a program starts.
    """
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        processes = [
            _CONTEXT.Process(target=_program, args=(program, list(words), dict(environment), out, err))
            for words, environment in zip(arguments, environments, strict=True)
        ]
        try:
            for process in processes:
                process.start()
            first, *others = processes
            first.join(timeout)
            if first.exitcode == 0:
                for process in others:
                    process.join(timeout)
                assert {process.exitcode for process in others} <= {0}, err.read_text()
            if first.exitcode is None:
                raise TimeoutError(f"rank 0 has not ended in {timeout} s:\n{err.read_text()}")
            return first.exitcode, out.read_text(), err.read_text()
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# Every worker takes each _WORKERS-th port, from one of its own: no two ask for the same.
_FIRST = 10_000 + os.getpid() % 5000 // _WORKERS * _WORKERS + _WORKER
_PORTS = itertools.cycle(range(_FIRST, 32_000, _WORKERS))


def free_port() -> int:
    """One to listen on a little later: below those that the kernel gives to whoever connects meanwhile."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise AssertionError("unreachable: the ports go round")


def torchrun_environment(world: int) -> list[dict[str, str]]:
    """What torchrun would tell each of ``world`` ranks on this machine."""
    port = str(free_port())
    shared = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def _program(program: Callable[[], Any], words: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ.update(environment)
    sys.argv[1:] = words
    program()


def _collect(pipes: list[Connection], timeout: float) -> list[Any]:
    results = []
    for rank, pipe in enumerate(pipes):
        if not pipe.poll(timeout):
            raise TimeoutError(f"rank {rank} has not answered in {timeout} s")
        try:
            ok, value = pipe.recv()
        except EOFError:
            raise AssertionError(f"rank {rank} died without a word") from None
        if not ok:
            raise AssertionError(f"rank {rank}:\n{value}")
        results.append(value)
    return results


def _rank(
    rank: int, world: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...], pipe: Connection
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{Path(folder) / 'store'}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
        value = function(*args)
        dist.barrier()
        pipe.send((True, value))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    pipe.close()
    sys.stdout.flush()
    os._exit(0)  # a plain exit after FSDP2 backward on gloo aborts now and then
