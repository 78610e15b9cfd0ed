"""What a collective costs inside a step beside what it costs alone: ranks that meet have not computed equally long.

A small model in layout ``tp`` makes real steps over the job's process group. What these take longer than predicted,
divided by the number of their collectives, is added to what every collective takes by the same method.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import comm_compress as cc
from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.division.wiring import Wiring
from fsdp_lab.parallel.models.choice import divided_model
from fsdp_lab.parallel.planning.devices import Devices, LinearTime
from fsdp_lab.parallel.planning.job import Job, Methods
from fsdp_lab.parallel.planning.measuring.models import random_batch, whole_model
from fsdp_lab.parallel.planning.steps.division import predict_layout
from fsdp_lab.parallel.planning.steps.traffic import block_collectives, end_collectives

_LAYERS, _LAYOUT = 2, "tp"


def with_meetings(devices: Devices, job: Job, methods: Methods, repeats: int) -> Devices:
    """``devices`` (equal on all ranks, which must all call this) with these times in the costs of their link."""
    small = replace(job, shape=replace(job.shape, layers=_LAYERS))
    seconds = {name: _a_meeting(devices, small, name, methods, repeats) for name in ("none", methods.activations)}
    return replace(devices, link=replace(devices.link, costs=_added(devices.link.costs, seconds)))


def _added(costs: Mapping[str, LinearTime], seconds: Mapping[str, float]) -> dict[str, LinearTime]:
    """``costs`` with the seconds of a meeting by "none", or by any method of ours, whose transport is the same."""
    ours = max(seconds.values()) if len(seconds) == 1 else next(s for name, s in seconds.items() if name != "none")
    added = {}
    for name, line in costs.items():
        more = seconds["none"] if name.endswith(" none") else ours
        added[name] = LinearTime(line.fixed + more, line.slope)
    return added


def _a_meeting(devices: Devices, job: Job, method: str, methods: Methods, repeats: int) -> float:
    """Seconds for each collective of a step that `predict_layout` does not account for."""
    world, one = dist.get_world_size(), replace(methods, activations=method)
    told = predict_layout(devices, job, _LAYOUT, [1] * world, one).gradients_s
    everywhere = [job.length] * world
    collectives = [*block_collectives(job, _LAYOUT, everywhere, one)] * _LAYERS
    number = sum(each.times for each in [*collectives, *end_collectives(job, _LAYOUT, everywhere, one)])
    return max(0.0, _step_s(job, method, repeats) - told) / number


def _step_s(job: Job, method: str, repeats: int) -> float:
    """Seconds of a step of the small model, until the last rank has ended: the median."""
    group: Any = dist.group.WORLD
    carrier, exact = (None, None) if method == "none" else (method, "identity")
    activations, statistic = cc.parallel.Activations(carrier, carrier), cc.parallel.Activations(exact, exact)
    wiring = Wiring(LAYOUTS[_LAYOUT], group, [1] * dist.get_world_size(), activations, statistic)
    model = divided_model(whole_model(job.model, _LAYERS), wiring)
    batch = random_batch(job.model, job.sequences, job.length)
    taken = []
    for _ in range(repeats + 1):
        dist.barrier()
        start = time.perf_counter()
        model.zero_grad()
        (model(batch) / model.num_targets(batch)).backward()
        dist.barrier()
        taken.append(time.perf_counter() - start)
    slowest = torch.tensor(taken[1:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(statistics.median(slowest.tolist()))
