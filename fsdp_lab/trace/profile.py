"""The profile of all ranks: what is printed, stored as JSON and put into a results row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fsdp_lab.trace.breakdown import StepTimes, Traffic, mean_times, mean_traffic, step_times
from fsdp_lab.trace.reading import chrome, cuda, host
from fsdp_lab.trace.reading.activity import Activity
from fsdp_lab.trace.reading.steps import PHASES


@dataclass(frozen=True)
class RankProfile:
    """The times of every profiled step of one rank."""

    rank: int
    world: int
    device: str
    backend: str
    steps: list[StepTimes]

    @property
    def mean(self) -> StepTimes:
        """The mean over this rank's steps."""
        return mean_step(self.steps)


@dataclass(frozen=True)
class Profile:
    """The profiles of all ranks, in the order of the ranks."""

    ranks: list[RankProfile]

    @property
    def mean(self) -> StepTimes:
        """The mean over ranks of the mean over steps."""
        return mean_step([rank.mean for rank in self.ranks])

    @property
    def slowest(self) -> RankProfile:
        """The rank with the most time outside exposed communication, for which the other ranks wait."""
        return max(self.ranks, key=lambda rank: rank.mean.whole.total - rank.mean.whole.exposed_communication)

    @property
    def overlap_ratio(self) -> float | None:
        """The lowest possible share of communication time that compute hides; None without communication."""
        whole = self.mean.whole
        return whole.communication_under_compute / whole.communication if whole.communication else None

    @property
    def overlap_ratio_at_most(self) -> float | None:
        """The highest possible share: as if every message had been under way from its posting to the end of waiting."""
        whole = self.mean.whole
        return whole.hidden_at_most / whole.communication_at_most if whole.communication_at_most else None

    def scalars(self) -> dict[str, float]:
        """The main numbers by name, for TensorBoard."""
        mean = self.mean
        numbers = {f"profile/{name}_ms": value for name, value in asdict(mean.whole).items()}
        if self.overlap_ratio is not None:
            numbers["profile/overlap_ratio"] = self.overlap_ratio
        for phase in PHASES:
            numbers[f"profile/{phase}_ms"] = mean.phases[phase].total
            numbers[f"profile/{phase}_exposed_communication_ms"] = mean.phases[phase].exposed_communication
        for op, traffic in mean.collectives.items():
            numbers |= {f"profile/{op}_{k}": v for k, v in _traffic(traffic).items() if v is not None}
        return numbers

    def to_json(self) -> dict[str, Any]:
        """Every number of every rank and step; times are milliseconds, bytes are counted per step."""
        return {
            "world_size": self.ranks[0].world,
            "device": self.ranks[0].device,
            "backend": self.ranks[0].backend,
            "overlap_ratio": self.overlap_ratio,
            "overlap_ratio_at_most": self.overlap_ratio_at_most,
            "mean": _step(self.mean),
            "slowest_rank": self.slowest.rank,
            "ranks": [
                {"rank": r.rank, "mean": _step(r.mean), "steps": [_step(s) for s in r.steps]} for r in self.ranks
            ],
        }


def mean_step(steps: Sequence[StepTimes]) -> StepTimes:
    """The mean of several steps, number by number."""
    return StepTimes(
        mean_times([s.whole for s in steps]),
        {phase: mean_times([s.phases[phase] for s in steps]) for phase in PHASES},
        mean_traffic([s.collectives for s in steps]),
    )


def activity(trace: chrome.Trace) -> Activity:
    """The activity in ``trace``, by the rules of `reading.activity`. ValueError when the trace marks no steps."""
    return cuda.activity(trace) if cuda.runs_on_cuda(trace) else host.activity(trace)


def rank_profile(trace: chrome.Trace, known: Activity | None = None) -> RankProfile:
    """The profile of one rank; ``known``: its activity, where it is known. ValueError when the trace marks no steps."""
    known = known or activity(trace)
    return RankProfile(trace.rank, trace.world, known.device, trace.backend, step_times(known))


def read_folder(folder: Path) -> list[chrome.Trace]:
    """The traces in ``folder``, by rank. ValueError when one is broken, when a rank has two, or when there are none."""
    traces = sorted((chrome.read(path) for path in chrome.find(folder)), key=lambda trace: trace.rank)
    for a, b in pairwise(traces):
        if a.rank == b.rank:
            raise ValueError(f"{folder}: {a.path.name} and {b.path.name} are both of rank {a.rank}; keep one a rank")
    return traces


def _step(step: StepTimes) -> dict[str, Any]:
    return {
        "whole": asdict(step.whole),
        "phases": {phase: asdict(times) for phase, times in step.phases.items()},
        "collectives": {
            op: _traffic(traffic)
            | {"share_of_step": step.share_of_step(op), "share_of_communication": step.share_of_communication(op)}
            for op, traffic in step.collectives.items()
        },
    }


def _traffic(traffic: Traffic) -> dict[str, float | None]:
    return {
        "count": traffic.count,
        "ms": traffic.milliseconds,
        "exposed_ms": traffic.exposed,
        "raw_bytes": traffic.raw_bytes,
        "sent_bytes": traffic.sent_bytes,
        "raw_gbps": traffic.raw_gbps,
        "sent_gbps": traffic.sent_gbps,
    }
