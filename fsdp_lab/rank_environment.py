"""The environment variables that ranks run under, the same for every experiment and for run_safe_training.sh."""

from __future__ import annotations

import os

# glibc returns large blocks to the kernel at once, and every step pays for mapping its logits again: a third of
# the step on CPU. Keep freed memory instead.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 28),
}


def rank_environment(ranks: int) -> dict[str, str]:
    """This process's environment with the cores shared out among ``ranks`` and the allocator set."""
    threads = max(1, (os.cpu_count() or 1) // ranks)
    return {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": str(threads), "KINETO_LOG_LEVEL": "6"}
