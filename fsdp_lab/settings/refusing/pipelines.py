"""Schedules of pipelines that the installed torch cannot run here."""

from __future__ import annotations

from fsdp_lab.settings.groups import ParallelConfig
from fsdp_lab.settings.refusing.here import device_here, torch_version

_SENDS_TO_ITSELF = "zbv"
"""The rank at the bottom of the V has two neighbouring stages, and torch 2.11 has it send to itself, over gloo too."""


def about_pipelines(parallel: ParallelConfig) -> list[str]:
    """A complaint where the schedule's first step would not end: gloo cannot send to the rank itself."""
    major, minor = torch_version()
    if parallel.pp == 1 or parallel.pp_schedule != _SENDS_TO_ITSELF or (major, minor) >= (2, 13):
        return []
    if device_here() == "cuda":
        return []
    return [f"pp_schedule: zbv on a CPU needs torch 2.13, this is {major}.{minor}; take interleaved or 1f1b"]
