"""How much memory a rank takes: its process, and what torch holds of its GPU. In GB of 10^9 bytes."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from fsdp_lab.ranks.distributed import Ranks

_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


class Peak(NamedTuple):
    """The most memory so far: resident in the process; allocated and reserved on the GPU (without one: resident)."""

    peak_rss_gb: float
    mem_peak_alloc_gb: float
    mem_peak_reserved_gb: float


def peak(device: torch.device) -> Peak:
    """The peak of this process so far."""
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT / 1e9
    if device.type != "cuda":
        return Peak(rss, rss, rss)
    return Peak(rss, torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9)


def reset_peak(device: torch.device) -> bool:
    """From now on `peak` is the most since now; False where this system cannot do that (it is not Linux).

    Memory that was freed goes back to the system first, as far as the allocators let go of it.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return True
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): the highest resident size starts anew
    except (OSError, AttributeError):
        return False
    return True


def row(ranks: Ranks) -> dict[str, float]:
    """The fields of a results row: the largest peak of any rank; collective."""
    by_rank = ranks.gather(tuple(peak(ranks.device)))
    return {name: max(peaks) for name, peaks in zip(Peak._fields, zip(*by_rank, strict=True), strict=True)}


def scalars(device: torch.device) -> dict[str, float]:
    """What TensorBoard shows of this process alone: the memory it holds now, and the most so far."""
    most = peak(device)
    values = {"memory/peak_rss_gb": most.peak_rss_gb}
    with suppress(OSError):  # Linux has it
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        values["memory/rss_gb"] = pages * os.sysconf("SC_PAGE_SIZE") / 1e9
    if device.type == "cuda":
        values["memory/allocated_gb"] = torch.cuda.memory_allocated() / 1e9
        values["memory/peak_allocated_gb"] = most.mem_peak_alloc_gb
        values["memory/peak_reserved_gb"] = most.mem_peak_reserved_gb
    return values
