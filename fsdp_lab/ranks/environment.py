"""The environment variables that ranks run under, the same for training and for every experiment."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

# The kernel clears what comes from mmap page by page in every step: up to a third of a CPU step. Torch's switch takes
# huge pages for it; what is below the threshold comes from the heap, where freed memory is used again. Not all of it:
# glibc before 2.38 cannot give a freed aligned block to the next request of the same size, and with blocks of hundreds
# of MB there a rank grew without bound (docs/log), so the threshold must not rise by itself, as it would.
GLIBC = {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_THRESHOLD_": str(4 << 20)}
# jemalloc keeps all that was freed and finds it again: no page is cleared after the first step. It wins where it is
# installed (Debian and Ubuntu: libjemalloc2), as in torch's own launcher for CPUs, torch.backends.xeon.run_cpu.
JEMALLOC = {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_CONF": "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"}
QUIET = {
    "KINETO_LOG_LEVEL": "6",  # the profiler's own words
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # pages of C++ frames when a store or a rank is gone, which we say in a line
}


def rank_environment(ranks: int) -> dict[str, str]:
    """This process's environment, and what is not set in it yet: threads (cores / ``ranks``), allocator.

    The allocator is jemalloc where it is installed, unless LD_PRELOAD is set already, be it to nothing.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    return {**_allocator(), **QUIET, "OMP_NUM_THREADS": str(threads), **os.environ}


def become_a_rank(module: str, arguments: Sequence[str]) -> None:
    """Start ``python -m module arguments`` anew in this process's place as a single rank, unless it was started so.

    For programs that train in their own process: an allocator is chosen before a program begins.
    """
    environment = rank_environment(1)
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment)


def jemalloc() -> Path | None:
    """The library that ranks take their memory from; None where it is not installed, or LD_PRELOAD says otherwise."""
    chosen = os.environ.get("LD_PRELOAD")  # by us, in the start before this one, or by the user
    return next((path for path in _places() if path.exists() and chosen in (None, str(path))), None)


def _allocator() -> dict[str, str]:
    library = jemalloc()
    return GLIBC if library is None else {**JEMALLOC, "LD_PRELOAD": str(library)}


def _places() -> list[Path]:
    """Where distributions and conda put jemalloc: asking the loader's list takes a process, and this is every start."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = (Path(sys.prefix, "lib"), Path("/usr/lib", multiarch), Path("/usr/lib64"), Path("/usr/local/lib"))
    return [folder / "libjemalloc.so.2" for folder in folders]
