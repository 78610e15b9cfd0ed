"""The environment variables that ranks run under, the same for training and for every experiment."""

from __future__ import annotations

import os

# Every step allocates the logits anew, and the kernel clears each of their pages: a third of the step on CPU with small
# pages. Torch's own switch takes huge ones. But glibc before 2.38 cannot give a freed aligned block of its heap to the
# next request of the same size: with small neighbours in the way a rank grew by 20 to 60 MB a step (docs/LOG.md). A
# fixed threshold sends every block from 256 KiB on to mmap, which gives memory back; left alone, it rises to 32 MiB.
ALLOCATOR = {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_THRESHOLD_": str(256 << 10)}
QUIET_PROFILER = {"KINETO_LOG_LEVEL": "6"}


def rank_environment(ranks: int) -> dict[str, str]:
    """This process's environment, and what is not set in it yet: threads (cores / ``ranks``), allocator."""
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    return {**ALLOCATOR, **QUIET_PROFILER, "OMP_NUM_THREADS": str(threads), **os.environ}
