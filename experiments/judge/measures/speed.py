"""How long the method computes, as a share of a plain copy that is timed before every measurement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import torch

import comm_compress as cc
from comm_compress.registry import spelled
from experiments.bench.traffic.codecs.timing import measure, runs
from experiments.bench.traffic.codecs.unit import Unit
from experiments.fidelity.method_settings import plain
from experiments.judge.subject.job import WORLD, Fact, Job

BESIDE = ("int8", "topk")


def facts(job: Job) -> Iterator[Fact]:
    """A line for each operation, of the judged method and of two of ours. One thread."""
    torch.set_num_threads(1)
    unit = Unit(float(job.options["mib"]), torch.device("cpu"))
    name, config = spelled(job.method)
    for method, settings in [(name, config), *((other, {}) for other in BESIDE)]:
        without = plain(method, settings)
        feeds_back = not without.traits.lossless and not without.traits.no_feedback
        feedback = cc.make(method, {**settings, "error_feedback": True}) if feeds_back else None
        competitors = runs(without, feedback, unit, worlds=(WORLD,))
        for row in measure(method, settings, competitors, unit, int(job.options["repeats"])):
            label = job.method if method == name else method
            derived = {"memcpy_ratio": row.memcpy_ratio, "gb_s": row.gb_s}
            yield {"kind": "speed", "label": label, "judged": method == name, **asdict(row), **derived}
