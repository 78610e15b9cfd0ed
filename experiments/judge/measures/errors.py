"""What the method sends of a gradient and what arrives: Gaussian, Laplace and real elements, beside methods of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from comm_compress.core.segments import segments_of
from comm_compress.drive import simulate
from comm_compress.registry import spelled
from experiments.fidelity import captured, table
from experiments.judge.subject.job import Fact, Job

BESIDE = ("bf16", "int8", "int4", "qsgd", "terngrad", "onebit", "topk", "powersgd")
WORLDS = (2, 4, 8)
_SIDE = 256


def facts(job: Job) -> Iterator[Fact]:
    """A line for each kind of data, method by method, the judged one first; then its bits at several world sizes."""
    name, config = spelled(job.method)
    sources: dict[str, Any] = {
        kind: table.synthetic(kind, int(job.options["elements"]), table.SETTLING + 1) for kind in table.SYNTHETIC
    }
    if job.options.get("gradients"):
        sources["real"] = [tuple(unit) for unit in captured.load(Path(job.options["gradients"]))]
    for method, settings in [(name, config), *((other, {}) for other in BESIDE)]:
        for data, units in sources.items():
            line = table.measure(method, {k: v for k, v in settings.items() if k != "error_feedback"}, data, units)
            label = job.method if method == name else method
            yield {"kind": "error", "label": label, "judged": method == name, **asdict(line), "bits": line.bits}
    yield from _at_worlds(job)


def _at_worlds(job: Job) -> Iterator[Fact]:
    """Bits an element and rounds of the third collective of one square matrix, by number of ranks."""
    most = job.make().traits.max_ranks
    for world in WORLDS:
        if most is not None and world > most:
            continue
        compressor = job.make()
        states = simulate.states(world, "unit", segments=segments_of([("matrix", (_SIDE, _SIDE))], world))
        generator = torch.Generator().manual_seed(world)
        for step in range(3):
            inputs = [torch.randn(world, _SIDE * _SIDE // world, generator=generator) for _ in range(world)]
            for state in states if step else []:
                state.begin(torch.tensor(True))
            outcome = simulate.lockstep([compressor.reduce_scatter(x, s) for x, s in zip(inputs, states, strict=True)])
        elements = _SIDE * _SIDE // world * (world - 1)
        bits = [8 * count.total / elements for count in outcome.sent]
        held = sum(state.num_bytes for state in states) / world / (_SIDE * _SIDE)
        yield {"kind": "world", "world": world, "bits": max(bits), "rounds": outcome.rounds, "state_bytes": held}
