"""Real ranks for tests: processes over gloo, forked from a server that has imported what they need."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = ["tests.preloaded"]
_CONTEXT.set_forkserver_preload(_PRELOADED)


def preload(module: str) -> None:
    """Have the server import ``module`` too; to be called while tests are collected, before the first rank."""
    _PRELOADED.append(module)
    _CONTEXT.set_forkserver_preload(_PRELOADED)


def run_ranks(world: int, function: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
    """``function(*args)`` on ``world`` ranks of a gloo group; the list of what they returned (picklable, no tensors
    on exit paths). An exception on any rank fails the test with that rank's traceback."""
    with TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_rank, args=(rank, world, folder, theirs, function, args), daemon=True)
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
    rank: int, world: int, folder: str, pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...]
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
