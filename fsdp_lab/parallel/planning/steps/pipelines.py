"""One step of a pipeline whose stages have different numbers of blocks: its schedule, followed message by message.

gpipe (arXiv 1811.06965) and 1f1b (1806.03377). The other two schedules have two stages on each rank and split or
interleave passes that are not measured apart, so they are not predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_lab.parallel.planning.devices import Devices
from fsdp_lab.parallel.planning.job import Job, Methods, Prediction
from fsdp_lab.parallel.planning.steps.memory import whole_memory
from fsdp_lab.parallel.planning.steps.traffic import STOCK, Collective, stages_message
from fsdp_lab.parallel.planning.steps.work import seconds_of

PIPELINES = ("gpipe", "1f1b")
_FORWARD = 1 / 3  # of the time of forward and backward
Pass = tuple[str, int]  # forward or backward, and the number of the micro-batch


def order_of(schedule: str, stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """The passes of a stage in the order in which it makes them."""
    forward = [("F", m) for m in range(micro_batches)]
    backward = [("B", m) for m in range(micro_batches)]
    if schedule == "gpipe":
        return forward + backward
    ahead = min(micro_batches, stages - stage)
    steady = [one for pair in zip(backward, forward[ahead:], strict=False) for one in pair]
    return forward[:ahead] + steady + backward[micro_batches - ahead :]


def makespan(
    orders: Sequence[Sequence[Pass]],
    forward: Sequence[float],
    backward: Sequence[float],
    message_s: float,
    latency_s: float,
) -> float:
    """Seconds until the last pass has ended.

    ``forward`` and ``backward``: seconds of a pass, by stage. A stage sends one message after another, each for
    ``message_s``, and computes meanwhile; it waits for what it receives.
    """
    stages = len(orders)
    ended: dict[tuple[int, str, int], float] = {}
    arrives: dict[tuple[int, str, int], float] = {}
    clock, link, done = [0.0] * stages, [0.0] * stages, [0] * stages
    while any(done[s] < len(orders[s]) for s in range(stages)):
        before = sum(done)
        for s in range(stages):
            while done[s] < len(orders[s]):
                way, m = orders[s][done[s]]
                is_end = s == 0 if way == "F" else s == stages - 1
                needed = (
                    0.0 if is_end and way == "F" else arrives.get((s, way, m)) if not is_end else ended.get((s, "F", m))
                )
                if needed is None:
                    break
                clock[s] = max(clock[s], needed) + (forward if way == "F" else backward)[s]
                ended[s, way, m] = clock[s]
                to = s + 1 if way == "F" else s - 1
                if 0 <= to < stages:
                    link[s] = max(link[s], clock[s]) + message_s
                    arrives[to, way, m] = link[s] + latency_s
                done[s] += 1
        if sum(done) == before:
            raise ValueError("schedule: its passes wait for each other")
    return max(ended.values())


def predict_pipeline(devices: Devices, job: Job, schedule: str, blocks: Sequence[int], methods: Methods) -> Prediction:
    """A step of a pipeline whose stage r, on rank r, has ``blocks[r]`` blocks. ValueError when one has none."""
    shape, stages, micro = job.shape, devices.world, job.micro_batches
    if min(blocks) < 1:
        raise ValueError(f"pipeline: {shape.layers} blocks do not make {stages} stages")
    measured = devices.are_measured_for(job.model, job.sequences, job.length)
    passes = []
    for rank, device in enumerate(devices.devices):
        seconds = blocks[rank] * seconds_of(device, job, "whole", "rest", measured).at(1 / micro)
        if rank == stages - 1:
            seconds += seconds_of(device, job, "whole", "ends", measured).at(1 / micro)
        passes.append(seconds)
    orders = [order_of(schedule, stage, stages, micro) for stage in range(stages)]
    forward, backward = [s * _FORWARD for s in passes], [s * (1 - _FORWARD) for s in passes]
    size, latency_s = stages_message(job, methods), devices.link.latency_ms / 1e3
    message_s = size / devices.link.bytes_per_s
    compute_s = makespan(orders, forward, backward, 0.0, 0.0)
    whole_s = makespan(orders, forward, backward, message_s, latency_s)
    tied = Collective("all_reduce", shape.vocabulary * shape.width, STOCK) if shape.is_tied else None
    shared_s = 0.0 if tied is None else tied.seconds(2, 32.0, devices.link)
    held = _held(job, blocks)
    ends = [0.0 if tied is None or 0 < rank < stages - 1 else tied.sent(0, 2, 32.0) for rank in range(stages)]
    neighbours = [(rank > 0) + (rank < stages - 1) for rank in range(stages)]
    return Prediction(
        compute_s,
        whole_s - compute_s + shared_s,
        update_s=max(d.update_ns * 1e-9 * p for d, p in zip(devices.devices, held, strict=True)),
        sent=tuple(micro * size * neighbours[rank] + ends[rank] for rank in range(stages)),
        memory=tuple(_memory(devices, job, schedule, blocks, held)),
    )


def _held(job: Job, blocks: Sequence[int]) -> list[float]:
    """Parameters by rank: the first stage has the embeddings, the last one the head."""
    shape = job.shape
    words = shape.vocabulary * shape.width
    held = [float(count * shape.block) for count in blocks]
    held[0] += words + shape.context * shape.width
    held[-1] += words + shape.rest - shape.context * shape.width
    return held


def _memory(devices: Devices, job: Job, schedule: str, blocks: Sequence[int], held: Sequence[float]) -> list[float]:
    """Bytes by rank: gpipe keeps all micro-batches' activations, 1f1b those that are under way."""
    stages, each = len(blocks), job.sequences / job.micro_batches
    memory = []
    for rank, device in enumerate(devices.devices):
        kept = job.micro_batches if schedule == "gpipe" else min(job.micro_batches, stages - rank)
        whole = whole_memory(job, held[rank], blocks[rank], kept * each, has_head=rank == stages - 1)
        memory.append(1e6 * device.base_mb + whole)
    return memory
