"""The environment variables that ranks run under, the same for training and for every experiment."""

from __future__ import annotations

import os

# glibc gives large blocks back to the kernel at once, so that every step maps its logits anew: a third of the step
# on CPU. Keep freed memory instead.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
QUIET_PROFILER = {"KINETO_LOG_LEVEL": "6"}


def rank_environment(ranks: int) -> dict[str, str]:
    """This process's environment, and what is not set in it yet: threads (cores / ``ranks``) and the allocator."""
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    return {**ALLOCATOR, **QUIET_PROFILER, "OMP_NUM_THREADS": str(threads), **os.environ}
