"""Predicted beside measured step times of candidates, measured by `experiments.bench.traffic.layouts`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from experiments.bench.traffic.layouts.asked import Asked
from fsdp_lab.parallel.planning.job import Candidate
from fsdp_lab.parallel.planning.table import carried, told

Line = dict[str, Any]


def chosen(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The ``count`` best that can be had, their layouts with equal shares, and the slowest."""
    possible = [one for one in candidates if not one.refused]
    best = possible[:count]
    alike = {(one.layout, one.methods) for one in best}
    equal = [one for one in possible if (one.layout, one.methods) in alike]
    return list(dict.fromkeys([*best, *equal, possible[-1]]))


def arms(candidates: Sequence[Candidate], micro_batches: int) -> list[Asked]:
    """What the bench is to run."""
    return [
        Asked(one.layout, one.methods.activations, one.methods.gradients, tuple(one.shares), micro_batches)
        for one in candidates
    ]


def beside(candidates: Sequence[Candidate], measured: Sequence[Line]) -> list[Line]:
    """The bench's lines with what was predicted: seconds without the optimizer, and bytes of rank 0."""
    return [
        {**line, "predicted_s": one.prediction.gradients_s, "predicted_bytes": round(one.prediction.sent[0])}
        for one, line in zip(candidates, measured, strict=True)
        if one.prediction is not None
    ]


def table(candidates: Sequence[Candidate], lines: Sequence[Line]) -> str:
    """A line for each candidate, and what follows from them."""
    rows = [
        f"{'layout':8s}{'shares':>10s}  {'carried by':16s}{'predicted ms':>14s}{'measured ms':>13s}{'ratio':>7s}"
        f"{'MB sent':>9s}{'interface MB':>14s}"
    ]
    for one, line in zip(candidates, lines, strict=True):
        predicted, took = line["predicted_s"], line["step_s"]
        rows.append(
            f"{one.layout:8s}{told(one.shares):>10s}  {carried(one):16s}{1e3 * predicted:14.0f}{1e3 * took:13.0f}"
            f"{predicted / took:7.2f}{line['predicted_bytes'] / 1e6:9.2f}{line['interface_bytes'] / 1e6:14.2f}"
        )
    return "\n".join([*rows, "", *summary(candidates, lines)])


def summary(candidates: Sequence[Candidate], lines: Sequence[Line]) -> list[str]:
    """Errors of the predictions; what the plan gained over equal shares, and over the slowest candidate."""
    off = sorted(abs(line["predicted_s"] / line["step_s"] - 1) for line in lines)
    planned, times = candidates[0], [line["step_s"] for line in lines]
    told_of = [f"predictions are off by {100 * statistics.median(off):.0f} % (median), {100 * off[-1]:.0f} % (worst)"]
    told_of.append(
        f"the planned one took {times[0] / min(times):.2f} times the fastest; "
        f"the slowest took {max(times) / times[0]:.2f} times the planned one"
    )
    for one, took in zip(candidates, times, strict=True):
        same = (one.layout, one.methods) == (planned.layout, planned.methods)
        if same and one is not planned:
            told_of.append(f"the planned layout with equal shares took {took / times[0]:.2f} times the planned one")
    return told_of
