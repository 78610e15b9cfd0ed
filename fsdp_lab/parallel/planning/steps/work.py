"""How long each device computes: the parts of a block in each layout, as straight lines over the share of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsdp_lab.parallel.division.shares import counts_for_all
from fsdp_lab.parallel.planning.devices import Device, LinearTime
from fsdp_lab.parallel.planning.job import Job

PARTS: Mapping[str, Mapping[str, str]] = {
    "tp": {"attention": "heads", "mlp": "columns", "rest": "whole", "ends": "words"},
    "sp": {"rest": "positions", "ends": "positions"},
    "galaxy": {"attention": "heads", "mlp": "columns", "rest": "positions", "ends": "words"},
    "galaxy2": {"attention": "heads", "rest": "positions", "ends": "words"},
    "whole": {"rest": "sequences", "ends": "sequences"},
}
"""What a layout's block has between its collectives, and what each part is a share of.

``rest``: all of a block that is in no other part. ``ends``: embedding, head and loss, once a step. ``whole``: an
undivided model on a part of the sequences (data parallel, pipelines).
"""
_NORM_OPERATIONS = 40  # for each feature of a token: two norms and two residuals, forward and backward


def operations(job: Job, layout: str, part: str) -> float:
    """Floating-point operations of a part of one block (or of both ends), forward and backward, all shares together."""
    shape, tokens = job.shape, job.tokens
    attention = 6.0 * tokens * shape.attention_parameters + 12.0 * tokens * job.length * shape.queries
    mlp = 6.0 * tokens * shape.mlp_parameters
    norms = float(_NORM_OPERATIONS * tokens * shape.width)
    if part == "ends":
        return 6.0 * job.head_tokens * shape.vocabulary * shape.width
    if part != "rest":
        return {"attention": attention, "mlp": mlp}[part]
    own = PARTS[layout]
    return norms + (0 if "attention" in own else attention) + (0 if "mlp" in own else mlp)


def seconds_of(device: Device, job: Job, layout: str, part: str, measured: bool) -> LinearTime:
    """Seconds of a part over the share of it: as measured, or else from the device's ``gflops``."""
    if measured and (line := device.parts.get(f"{layout}.{part}")) is not None:
        return line
    return LinearTime(0.0, operations(job, layout, part) / (device.gflops * 1e9))


def counts_by(job: Job, layout: str, shares: Sequence[float]) -> dict[str, list[int]]:
    """How many heads (of keys and values), columns, positions and words each rank gets. ValueError when none."""
    shape = job.shape
    totals = {"heads": shape.key_heads, "columns": shape.columns, "positions": job.length, "words": shape.vocabulary}
    wanted = set(PARTS[layout].values()) & totals.keys()
    if layout.startswith("galaxy"):
        wanted.add("positions")
    return {what: counts_for_all(what, totals[what], shares) for what in totals if what in wanted}


def fractions_by(job: Job, layout: str, shares: Sequence[float]) -> dict[str, list[float]]:
    """As `counts_by`, as fractions; "whole" is 1 on every rank."""
    counts = counts_by(job, layout, shares)
    parts = {what: [count / sum(each) for count in each] for what, each in counts.items()}
    return {**parts, "whole": [1.0] * len(shares)}


def layout_seconds(
    devices: Sequence[Device], job: Job, layout: str, shares: Sequence[float], measured: bool
) -> tuple[float, float]:
    """Seconds that the ranks compute in one block, and at the ends: of each part those of the slowest rank.

    Collectives between the parts make every rank wait for the last one.
    """
    fractions = fractions_by(job, layout, shares)
    slowest = {
        part: max(
            seconds_of(device, job, layout, part, measured).at(fractions[unit][rank])
            for rank, device in enumerate(devices)
        )
        for part, unit in PARTS[layout].items()
    }
    ends = slowest.pop("ends")
    return sum(slowest.values()), ends
