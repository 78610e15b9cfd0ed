"""Schedules of pipelines that the installed torch cannot run here."""

from __future__ import annotations

from fsdp_lab.settings.groups import ParallelConfig
from fsdp_lab.settings.refusing.here import device_here, torch_version


def about_pipelines(parallel: ParallelConfig) -> list[str]:
    """A complaint about ``zbv`` on a CPU where torch is older than 2.13.

    Its first step fails over gloo with torch 2.11, with torch's own stages as well: they send between neighbouring
    stages also where both are on one rank. 2.12 was not tried.
    """
    major, minor = torch_version()
    if parallel.pp == 1 or parallel.pp_schedule != "zbv" or (major, minor) >= (2, 13):
        return []
    if device_here() == "cuda":
        return []
    return [f"pp_schedule: zbv on a CPU needs torch 2.13, this is {major}.{minor}; take interleaved or 1f1b"]
