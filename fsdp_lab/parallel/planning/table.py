"""Candidates as a table, and as the trainer's flags."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.planning.job import Candidate, Job
from fsdp_lab.parallel.planning.steps.pipelines import PIPELINES


def told(shares: Sequence[float]) -> str:
    """Shares as a table has them: ``3:1``; equal ones as "equal"."""
    return "equal" if len(set(shares)) < 2 else ":".join(f"{share:g}" for share in shares)


def carried(candidate: Candidate) -> str:
    """By which methods: of activations, and of gradients where the layout sends these, too."""
    methods = candidate.methods
    if candidate.layout not in (*LAYOUTS, *PIPELINES):
        return methods.gradients
    sends_gradients = candidate.layout in LAYOUTS and candidate.layout != "tp"
    if methods.gradients in ("none", methods.activations) or not sends_gradients:
        return methods.activations
    return f"{methods.activations} + {methods.gradients}"


def table(candidates: Sequence[Candidate]) -> str:
    """A line for each candidate, in their order; those that are refused with the reason."""
    rows = [
        f"{'layout':8s}{'shares':>10s}  {'carried by':16s}{'step ms':>9s}{'compute':>9s}{'link':>8s}{'update':>8s}"
        f"{'MB sent':>9s}   memory MB"
    ]
    for one in candidates:
        start = f"{one.layout:8s}{told(one.shares):>10s}  {carried(one):16s}"
        told_of = one.prediction
        if one.refused or told_of is None:
            rows.append(f"{start}{'-':>9s}   refused: {one.refused}")
            continue
        times = "".join(
            f"{1e3 * seconds:{width}.0f}"
            for seconds, width in (
                (told_of.step_s, 9),
                (told_of.compute_s, 9),
                (told_of.link_s, 8),
                (told_of.update_s, 8),
            )
        )
        memory = " ".join(f"{each / 1e6:.0f}" for each in told_of.memory)
        rows.append(f"{start}{times}{max(told_of.sent) / 1e6:9.2f}   {memory}")
    return "\n".join(rows)


def flags(candidate: Candidate, job: Job) -> str:
    """The trainer's flags for a candidate."""
    world, methods = len(candidate.shares), candidate.methods
    shares = "" if len(set(candidate.shares)) < 2 else f" --shares {','.join(map(str, candidate.shares))}"
    carriers = "" if methods.activations == "none" else f" --activation {methods.activations!r}"
    carriers += "" if methods.activations == "none" else f" --activation_grad {methods.activations!r}"
    if candidate.layout in PIPELINES:
        micro = f" --pp_micro_batches {job.micro_batches}"
        return f"--model {job.model} --pp {world} --pp_schedule {candidate.layout}{micro}{shares}{carriers}"
    reduced = "" if methods.gradients == "none" else f" --comm_compress {methods.gradients!r}"
    if candidate.layout in LAYOUTS:
        summed = reduced if candidate.layout != "tp" else ""
        return f"--model {job.model} --tp {world} --layout {candidate.layout}{shares}{carriers}{summed}"
    replicas = f" --dp_replicas {world}" if candidate.layout == "ddp" else ""
    return f"--model {job.model} --dp {world}{replicas}{reduced}"
