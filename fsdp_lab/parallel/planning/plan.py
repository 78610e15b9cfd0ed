"""Every way to divide a job over given devices, each with its best shares, the fastest first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.planning.devices import Devices
from fsdp_lab.parallel.planning.job import Candidate, Job, Methods, Prediction
from fsdp_lab.parallel.planning.search import Shares, least, reduced
from fsdp_lab.parallel.planning.steps.data_parallel import predict_data_parallel
from fsdp_lab.parallel.planning.steps.division import predict_layout
from fsdp_lab.parallel.planning.steps.pipelines import PIPELINES, predict_pipeline

DATA_PARALLEL = ("fsdp", "ddp")
ALL = (*DATA_PARALLEL, *LAYOUTS, *PIPELINES)
GRAIN = 64
"""Into how many units a layout's whole is cut to find the shares of two ranks; of more, 16 for each rank."""
Predict = Callable[[Shares], Prediction]


def plan(devices: Devices, job: Job, methods: Sequence[Methods], layouts: Sequence[str] = ALL) -> list[Candidate]:
    """All candidates: those that can be had by predicted step time, then those that cannot, with the reason.

    Every layout comes with its best shares and, where these differ, with equal ones; each with every one of
    ``methods`` that changes something for it. Pure: the same arguments give the same list. ValueError for a method
    whose bits are not known.
    """
    for one in methods:
        one.bits_of(one.activations), one.bits_of(one.gradients)
    candidates: list[Candidate] = []
    for layout in layouts:
        for one in _that_differ(layout, methods):
            candidates += _candidates(devices, job, layout, one)
    return sorted(candidates, key=lambda c: (bool(c.refused), c.prediction.step_s if c.prediction else math.inf))


def _that_differ(layout: str, methods: Sequence[Methods]) -> list[Methods]:
    """One of those methods that send the same in ``layout``: data parallel ranks exchange no activations."""
    by_key: dict[tuple[str, str], Methods] = {}
    for one in methods:
        key = (
            one.gradients if layout in DATA_PARALLEL else one.activations,
            one.gradients if layout in LAYOUTS and layout != "tp" else "",
        )
        by_key.setdefault(key, one)
    return list(by_key.values())


def _candidates(devices: Devices, job: Job, layout: str, methods: Methods) -> list[Candidate]:
    world, equal = devices.world, (1,) * devices.world
    if layout in DATA_PARALLEL:
        return [_made(devices, layout, equal, methods, lambda _: predict_data_parallel(devices, job, layout, methods))]
    if layout in PIPELINES:
        if job.shape.layers < world:
            why = f"{job.shape.layers} blocks do not make {world} stages"
            return [Candidate(layout, equal, methods, refused=why)]

        def predict(shares: Shares) -> Prediction:
            return predict_pipeline(devices, job, layout, shares, methods)

        total = job.shape.layers
        even = tuple(total // world + (rank < total % world) for rank in range(world))
        best = least(total, _speeds(devices), _cost(devices, predict))
        return [_made(devices, layout, one, methods, predict) for one in dict.fromkeys((best, even))]

    def predict_shares(shares: Shares) -> Prediction:
        return predict_layout(devices, job, layout, shares, methods)

    best = reduced(least(GRAIN if world == 2 else 16 * world, _speeds(devices), _cost(devices, predict_shares)))
    return [_made(devices, layout, one, methods, predict_shares) for one in dict.fromkeys((best, equal))]


def _made(devices: Devices, layout: str, shares: Shares, methods: Methods, predict: Predict) -> Candidate:
    """The candidate with its prediction, refused where that cannot be, or does not fit."""
    try:
        prediction = predict(shares)
    except ValueError as error:
        return Candidate(layout, shares, methods, refused=str(error))
    candidate = Candidate(layout, shares, methods, prediction)
    return candidate.but(why) if (why := _too_large(devices, prediction)) else candidate


def _too_large(devices: Devices, prediction: Prediction) -> str:
    """Which rank's memory is too small; empty where all fit."""
    for rank, (device, needed) in enumerate(zip(devices.devices, prediction.memory, strict=True)):
        if device.memory_mb and needed > device.memory_mb * 1e6:
            return f"rank {rank} ({device.name}) needs {needed / 1e6:.0f} MB and has {device.memory_mb:.0f}"
    return ""


def _cost(devices: Devices, predict: Predict) -> Callable[[Shares], float]:
    """Seconds of a step; infinite for shares that cannot be had, a little less so where only memory is missing."""

    def cost(shares: Shares) -> float:
        try:
            prediction = predict(shares)
        except ValueError:
            return math.inf
        missing = max(
            (
                needed / (d.memory_mb * 1e6)
                for d, needed in zip(devices.devices, prediction.memory, strict=True)
                if d.memory_mb
            ),
            default=0.0,
        )
        return prediction.step_s if missing <= 1 else 1e9 * missing

    return cost


def _speeds(devices: Devices) -> list[float]:
    return [device.gflops for device in devices.devices]
