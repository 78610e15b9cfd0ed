"""The environment variables that ranks run under, the same for training and for every experiment."""

from __future__ import annotations

import os

# Every step allocates the logits anew. glibc would map and unmap them each time, and the kernel would clear each of
# their small pages: a third of the step on CPU. So keep freed memory, and take it in huge pages.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "THP_MEM_ALLOC_ENABLE": "1",  # torch's own switch
}
QUIET_PROFILER = {"KINETO_LOG_LEVEL": "6"}


def rank_environment(ranks: int) -> dict[str, str]:
    """This process's environment, and what is not set in it yet: threads (cores / ``ranks``) and the allocator."""
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    return {**ALLOCATOR, **QUIET_PROFILER, "OMP_NUM_THREADS": str(threads), **os.environ}
