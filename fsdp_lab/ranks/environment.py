"""The environment variables that ranks run under, the same for training and for every experiment."""

from __future__ import annotations

import os

# The kernel clears what comes from mmap page by page in every step: up to a third of a CPU step. Torch's switch takes
# huge pages for it; what is below the threshold comes from the heap, where freed memory is used again. Not all of it:
# glibc before 2.38 cannot give a freed aligned block to the next request of the same size, and with blocks of hundreds
# of MB there a rank grew without bound (docs/log), so the threshold must not rise by itself, as it would.
ALLOCATOR = {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_THRESHOLD_": str(4 << 20)}
QUIET = {
    "KINETO_LOG_LEVEL": "6",  # the profiler's own words
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # pages of C++ frames when a store or a rank is gone, which we say in a line
}


def rank_environment(ranks: int) -> dict[str, str]:
    """This process's environment, and what is not set in it yet: threads (cores / ``ranks``), allocator."""
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    return {**ALLOCATOR, **QUIET, "OMP_NUM_THREADS": str(threads), **os.environ}
