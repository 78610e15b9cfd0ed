"""A profiled run's own traces, read by the run itself: each rank its own, wherever it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsdp_lab import trace
from fsdp_lab.ranks.distributed import Ranks


def read_profile(path: Path, ranks: Ranks) -> tuple[trace.Profile | None, str | None]:
    """All ranks' profile, or what is wrong with a rank's trace; collective."""
    by_rank = ranks.gather(_mine(path))
    complaints = [one for one in by_rank if isinstance(one, str)]
    if complaints:
        return None, f"no profile: {complaints[0]}"
    return trace.Profile([one for one in by_rank if not isinstance(one, str)]), None


def _mine(path: Path) -> trace.RankProfile | str:
    """This rank's profile, or what is wrong with its trace."""
    try:
        return trace.rank_profile(trace.read(path))
    except ValueError as error:  # a trace that cannot be read must not end the training
        return str(error)


def row(profile: trace.Profile) -> dict[str, Any]:
    """The fields of a results row that a profile gives."""
    return {
        "overlap_ratio": profile.overlap_ratio,
        "exposed_comm_ms_per_step": profile.mean.whole.exposed_communication,
    }
