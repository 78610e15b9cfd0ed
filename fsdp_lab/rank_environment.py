"""The environment variables that ranks run under, the same for training and for every experiment."""

from __future__ import annotations

import os

# Every step allocates the logits anew, and the kernel clears each of their pages: a third of the step on CPU with small
# pages. Torch's own switch takes huge ones.
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
QUIET_PROFILER = {"KINETO_LOG_LEVEL": "6"}


def rank_environment(ranks: int) -> dict[str, str]:
    """This process's environment, and what is not set in it yet: threads (cores / ``ranks``) and huge pages."""
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    return {**HUGE_PAGES, **QUIET_PROFILER, "OMP_NUM_THREADS": str(threads), **os.environ}
