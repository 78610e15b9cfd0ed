"""Of several processes that come to a new kernel at once, one compiles it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch.distributed as dist

from comm_compress.kernels.tools import compiled as numba_tools, shared_cache
from comm_compress.kernels.tools.compiled import compiled
from tests.distributed import run_ranks

squared: Any = None  # a name of the module, as kernels call each other


def _squared(x: Any) -> Any:
    return x * x


def _fourth(x: Any) -> Any:
    return squared(squared(x))


def kernels(folder: Path) -> list[Any]:
    """Two kernels, one of which calls the other, as a program that has just started has them."""
    global squared
    before, numba_tools.CACHE_FOLDER = numba_tools.CACHE_FOLDER, str(folder)
    squared = compiled(_squared)
    made = [squared, compiled(_fourth)]
    numba_tools.CACHE_FOLDER = before
    return made


def _locked(kernel: Any) -> bool:
    """Take the lock for float32, as who compiles it does."""
    Path(kernel._cache.cache_path).mkdir(parents=True, exist_ok=True)
    return bool(kernel._cache._acquire((numba.float32,), kernel.targetctx))


def _misses(made: list[Any]) -> list[int]:
    return [sum(kernel.stats.cache_misses.values()) for kernel in made]


def _all_at_once(folder: Path) -> list[int]:
    made = kernels(folder)
    dist.barrier()
    for x in (np.float32(3), np.float64(3), np.int64(3)):  # each rank begins with another kernel
        for kernel in made[dist.get_rank() % 2 :] + made[: dist.get_rank() % 2]:
            assert kernel(x) in (9, 81)
    dist.barrier()
    return _misses(made)


def test_one_rank_compiles_for_all(tmp_path: Path) -> None:
    of_squared, of_fourth = (sum(of) for of in zip(*run_ranks(3, _all_at_once, tmp_path), strict=True))
    assert (of_squared, of_fourth) == (3, 3), "once for each type"
    again = kernels(tmp_path)
    assert [kernel(np.float32(2)) for kernel in again] == [4, 16]
    assert _misses(again) == [0, 0], "nothing that was written is lost"


def _killed_while_it_compiles(folder: Path) -> float:
    kernel = kernels(folder)[0]
    if dist.get_rank() == 0:
        if (child := os.fork()) == 0:
            _locked(kernel)
            time.sleep(60)
        while not list(folder.rglob("*.lock")):
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    dist.barrier()
    start = time.monotonic()
    assert kernel(np.float32(2)) == 4
    return time.monotonic() - start


def test_nobody_waits_for_a_process_that_was_killed(tmp_path: Path) -> None:
    assert max(run_ranks(2, _killed_while_it_compiles, tmp_path)) < 30


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_cache, "LONGEST_WAIT", 0.1)
    stopped, here = kernels(tmp_path)[0], kernels(tmp_path)[0]
    assert _locked(stopped), "as by a process that was stopped"
    assert here(np.float32(2)) == 4
    stopped._cache._release()
    assert _locked(kernels(tmp_path)[0])


def test_it_is_compiled_for_other_types_meanwhile(tmp_path: Path) -> None:
    busy, here = kernels(tmp_path)[0], kernels(tmp_path)[0]
    assert _locked(busy)
    start = time.monotonic()
    assert here(np.float64(2)) == 4
    assert time.monotonic() - start < shared_cache.LONGEST_WAIT / 2
    again = kernels(tmp_path)[0]
    assert again(np.float64(3)) == 9
    assert _misses([again]) == [0]
