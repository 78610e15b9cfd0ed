"""One step of FSDP2 and of DDP, in which every rank has as many sequences as the others."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_lab.parallel.planning.devices import Devices
from fsdp_lab.parallel.planning.job import FLOAT, Job, Methods, Prediction
from fsdp_lab.parallel.planning.steps.memory import whole_memory
from fsdp_lab.parallel.planning.steps.traffic import (
    STOCK,
    Collective,
    bucket_bytes,
    replicated,
    total_seconds,
    total_sent,
)
from fsdp_lab.parallel.planning.steps.work import seconds_of

_FORWARD = 1 / 3  # of the time of forward and backward


def predict_data_parallel(devices: Devices, job: Job, kind: str, methods: Methods) -> Prediction:
    """A step of "fsdp" or "ddp". ValueError when the sequences do not divide among the ranks."""
    shape, world = job.shape, devices.world
    if job.sequences % world:
        raise ValueError(f"sequences: {job.sequences} do not divide among {world} data parallel ranks")
    measured = devices.are_measured_for(job.model, job.sequences, job.length)
    compute = [
        shape.layers * seconds_of(device, job, "whole", "rest", measured).at(1 / world)
        + seconds_of(device, job, "whole", "ends", measured).at(1 / world)
        for device in devices.devices
    ]
    compute_s, everything = max(compute), shape.parameters
    if kind == "fsdp":
        collectives = _fsdp(job, methods)
        link_s = total_seconds(collectives, methods, world, devices.link, compute_s)
    else:
        collectives = _ddp(job, methods)
        link_s = _after_backward(collectives, methods, devices, compute_s)
    held = everything / world if kind == "fsdp" else everything
    gathered = 2 * FLOAT * max(shape.block, shape.word_parameters + shape.rest) if kind == "fsdp" else 0
    memory = whole_memory(job, held, shape.layers, job.sequences / world) + gathered
    return Prediction(
        compute_s,
        link_s,
        update_s=max(device.update_ns * 1e-9 * held for device in devices.devices),
        sent=tuple(total_sent(collectives, methods, world)),
        memory=tuple(1e6 * device.base_mb + memory for device in devices.devices),
    )


def _fsdp(job: Job, methods: Methods) -> list[Collective]:
    """Blocks are gathered in forward and again in backward, what is around them once; all gradients are scattered.

    On gloo none of it hides behind computation.
    """
    shape, method = job.shape, methods.gradients
    blocks = [Collective("all_gather", shape.block, method, times=2 * shape.layers)]
    blocks += [Collective("reduce_scatter", shape.block, method, times=shape.layers)]
    root = shape.word_parameters + shape.rest
    return [*blocks, Collective("all_gather", root, method), Collective("reduce_scatter", root, method)]


def _ddp(job: Job, methods: Methods) -> list[Collective]:
    return [one for size in bucket_bytes(job.shape.parameters) for one in replicated(size // FLOAT, methods)]


def _after_backward(collectives: Sequence[Collective], methods: Methods, devices: Devices, compute_s: float) -> float:
    """What DDP's collectives add to computing: torch's own start while backward goes on, as their buckets fill."""
    world, link = devices.world, devices.link
    seconds = [one.seconds(world, methods.bits_of(one.method), link) for one in collectives]
    if methods.gradients != STOCK:
        return sum(seconds)
    total, filled, until = sum(one.elements for one in collectives), 0.0, 0.0
    for one, lasts in zip(collectives, seconds, strict=True):
        filled += one.elements
        ready = compute_s * (_FORWARD + (1 - _FORWARD) * filled / total)
        until = max(until, ready) + lasts
    return until - compute_s
