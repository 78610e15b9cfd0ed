"""One step of a layout with given shares: what each rank computes, sends and holds."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_lab.parallel.division.shares import counts_for_all
from fsdp_lab.parallel.planning.devices import Devices
from fsdp_lab.parallel.planning.job import Job, Methods, Prediction
from fsdp_lab.parallel.planning.steps.memory import held_parameters, layout_memory
from fsdp_lab.parallel.planning.steps.traffic import block_collectives, end_collectives, total_seconds, total_sent
from fsdp_lab.parallel.planning.steps.work import counts_by, layout_seconds


def predict_layout(devices: Devices, job: Job, layout: str, shares: Sequence[float], methods: Methods) -> Prediction:
    """A step of ``layout`` (a key of `LAYOUTS`). ValueError when a rank would get no heads, columns or positions.

    Nothing is sent while a rank computes, as the operators of `cc.parallel` have it. Between two collectives the
    slowest rank decides, and in a collective the one that sends most.
    """
    ranks, shape, world = devices.devices, job.shape, devices.world
    measured = devices.are_measured_for(job.model, job.sequences, job.length)
    block_s, ends_s = layout_seconds(ranks, job, layout, shares, measured)
    compute_s = shape.layers * block_s + ends_s
    positions = counts_for_all("positions", job.length, shares) if layout != "tp" else [job.length] * world
    in_block = block_collectives(job, layout, positions, methods)
    at_ends = end_collectives(job, layout, positions, methods)
    link_s = shape.layers * total_seconds(in_block, methods, world, devices.link, block_s)
    link_s += total_seconds(at_ends, methods, world, devices.link, ends_s)
    sent = zip(total_sent(in_block, methods, world), total_sent(at_ends, methods, world), strict=True)
    counts = counts_by(job, layout, shares)
    fractions = [{what: each[rank] / sum(each) for what, each in counts.items()} for rank in range(world)]
    return Prediction(
        compute_s,
        link_s,
        update_s=max(
            device.update_ns * 1e-9 * held_parameters(job, layout, own)
            for device, own in zip(ranks, fractions, strict=True)
        ),
        sent=tuple(shape.layers * block + end for block, end in sent),
        memory=tuple(
            1e6 * device.base_mb + layout_memory(job, layout, own) for device, own in zip(ranks, fractions, strict=True)
        ),
    )
