"""Real ranks for tests: processes over gloo, forked from a server that has imported what they need."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def run_ranks(
    world: int, function: Callable[..., Any], *args: Any, timeout: float = 120, alone: bool = False
) -> list[Any]:
    """``function(*args)`` on ``world`` ranks of a gloo group; the list of what they returned (picklable, no tensors
    on exit paths). An exception on any rank fails the test with that rank's traceback.

    The processes stay for the next call of the same file of tests, which has a group of its own and the random numbers
    of a fresh process: what a process does for the first time (FSDP2, kernels read from the disk) is not done
    again. ``alone``: on processes of its own, for a function that changes its process for good.
    """
    if alone:
        close_ranks()
    with TemporaryDirectory() as folder:
        found = work_of(world, _rank, work=(world, folder, function, args), timeout=timeout)
    if alone:
        close_ranks()
    return found


def work_of(world: int, target: Callable[..., None], *args: Any, work: object, timeout: float) -> list[Any]:
    """What ``world`` processes ``target(rank, *args, pipe)`` make of ``work``, which they find in their pipes.

    As of `answers`, but the processes stay for more of it, until `close_ranks`; fewer or more of them may be asked.
    """
    pipes, processes = _STARTED.setdefault((target, args), ([], []))
    try:
        for rank in range(len(processes), world):
            pipe, process = _started(rank, target, args)
            pipes.append(pipe)
            processes.append(process)
        for pipe in pipes[:world]:
            pipe.send_bytes(pickle.dumps(work))
        return _collect(pipes[:world], timeout)
    except BaseException:  # who knows what state they are in
        close_ranks()
        raise


def close_ranks() -> None:
    """End all processes of `work_of`."""
    while _STARTED:
        _kill(_STARTED.popitem()[1][1])


_STARTED: dict[tuple[Callable[..., None], tuple[Any, ...]], tuple[list[Connection], list[Any]]] = {}


def answers(world: int, target: Callable[..., None], *args: Any, timeout: float) -> list[Any]:
    """What ``world`` processes ``target(rank, *args, pipe)`` send through their pipes: (True, answer), or (False, why)
    to fail the test. They are killed when all have answered."""
    started = [_started(rank, target, args) for rank in range(world)]
    try:
        return _collect([pipe for pipe, _ in started], timeout)
    finally:
        _kill([process for _, process in started])


def _started(rank: int, target: Callable[..., None], args: tuple[Any, ...]) -> tuple[Connection, Any]:
    """A process ``target(rank, *args, pipe)``, and our end of its pipe."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=target, args=(rank, *args, theirs), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _kill(processes: Sequence[Any]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
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
    with started_program(program, arguments, environments) as ended:
        return ended(timeout)


@contextlib.contextmanager
def started_program(
    program: Callable[[], Any], arguments: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]
) -> Iterator[Callable[[float], tuple[int, str, str]]]:
    """As `run_program`, whose return value a call with the timeout waits for; what still runs in the end is killed."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        processes = [
            _CONTEXT.Process(target=_program, args=(program, list(words), dict(environment), out, err))
            for words, environment in zip(arguments, environments, strict=True)
        ]
        first, *others = processes

        def ended(timeout: float) -> tuple[int, str, str]:
            first.join(timeout)
            if first.exitcode == 0:
                for process in others:
                    process.join(timeout)
                assert {process.exitcode for process in others} <= {0}, err.read_text()
            if first.exitcode is None:
                raise TimeoutError(f"rank 0 has not ended in {timeout} s:\n{err.read_text()}")
            return first.exitcode, out.read_text(), err.read_text()

        try:
            for process in processes:
                process.start()
            yield ended
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
        except (EOFError, ConnectionError):
            raise AssertionError(f"rank {rank} died without a word") from None
        if not ok:
            raise AssertionError(f"rank {rank}:\n{value}")
        results.append(value)
    return results


def _rank(rank: int, pipe: Connection) -> None:
    """What a process of `run_ranks` does: one call after the other."""
    import numpy as np
    import torch

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    at_first = torch.get_rng_state(), random.getstate(), np.random.get_state()
    while True:
        try:
            work = pipe.recv_bytes()
        except EOFError:  # the tests' process has ended
            os._exit(0)
        torch.set_num_threads(1)
        torch.set_rng_state(at_first[0])
        random.setstate(at_first[1])
        np.random.set_state(at_first[2])
        try:
            world, folder, function, args = pickle.loads(work)
            _meet(rank, world, folder)
            answer = True, function(*args)
            torch.distributed.barrier()
            pipe.send(answer)
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        sys.stdout.flush()
        work = answer = function = args = None  # what they hold is not for the next call


def _meet(rank: int, world: int, folder: str) -> None:
    """Leave the group of the last call, and what belonged to it, for a new one."""
    import torch.distributed as dist

    if dist.is_initialized():
        gc.collect()  # models that are in circles with their hooks
        dist.destroy_process_group()
    store = f"file://{Path(folder) / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
