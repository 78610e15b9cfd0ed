"""The bytes that a plan predicts are those that a divided model sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

import comm_compress as cc
from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.division.wiring import Wiring
from fsdp_lab.parallel.models.choice import divided_model
from fsdp_lab.parallel.pipeline import Pipeline
from fsdp_lab.parallel.planning.devices import Device, Devices, LinkSpeed
from fsdp_lab.parallel.planning.job import Job, Methods
from fsdp_lab.parallel.planning.measuring.models import random_batch, whole_model
from fsdp_lab.parallel.planning.steps.division import predict_layout
from fsdp_lab.parallel.planning.steps.pipelines import predict_pipeline
from fsdp_lab.parallel.planning.steps.traffic import Collective
from tests.distributed import run_ranks

JOB = Job.of("gpt2-mini", 2, 32, 2)
EXACT = Methods("identity", "identity")
EMBEDDING = 4096 * 192 * 4  # bytes of the weight that first and last stage share


def sent_in_layout(layout: str, shares: Sequence[float]) -> int:
    """Bytes that this rank sends in a step, as our ledgers count them."""
    group: Any = dist.group.WORLD
    activations, statistics = (cc.parallel.Activations("identity", "identity") for _ in range(2))
    model = divided_model(whole_model(JOB.model), Wiring(LAYOUTS[layout], group, shares, activations, statistics))
    replicas = cc.parallel.ReplicatedGradients(model.replicated(), group, "identity")
    (model(random_batch(JOB.model, JOB.sequences, JOB.length)) / JOB.tokens).backward()
    replicas.reduce()
    return sum(each.ledger.totals().sent_bytes for each in (activations, statistics, replicas))


def sent_in_pipeline(blocks: list[int]) -> int:
    alone: Any = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    group: Any = dist.group.WORLD
    wiring = Wiring(LAYOUTS["tp"], alone, [1], cc.parallel.Activations(), cc.parallel.Activations())
    activations = cc.parallel.Activations("identity", "identity")
    model = divided_model(whole_model(JOB.model), wiring)
    pipeline = Pipeline(model, "1f1b", JOB.micro_batches, group, activations, JOB.length, blocks)
    pipeline.step(random_batch(JOB.model, JOB.sequences, JOB.length))
    pipeline.reduce_tied()
    return int(activations.ledger.totals().sent_bytes)


def sent() -> dict[str, int]:
    torch.set_num_threads(1)
    layouts = {f"{name} {s[0]}": sent_in_layout(name, s) for name in LAYOUTS for s in ([1, 1], [3, 1])}
    return {**layouts, "pipeline": sent_in_pipeline([3, 1])}


def test_every_layout_sends_what_was_predicted() -> None:
    by_rank = run_ranks(2, sent)
    both = Devices([Device("a", 1.0), Device("b", 1.0)], LinkSpeed(100))
    for layout in LAYOUTS:
        for shares in ([1, 1], [3, 1]):
            told = predict_layout(both, JOB, layout, shares, EXACT).sent
            for rank in range(2):
                counted = by_rank[rank][f"{layout} {shares[0]}"]
                # the loss of sequence parallelism is summed by torch's own all-reduce, which nobody counts
                assert told[rank] == pytest.approx(counted, rel=2e-3), (layout, shares, rank)
    told = predict_pipeline(both, JOB, "1f1b", [3, 1], EXACT).sent
    for rank in range(2):
        assert told[rank] - EMBEDDING == by_rank[rank]["pipeline"]


def test_collectives_on_three_ranks() -> None:
    """Against what each must send at least; torch's reduce-scatter is an all-reduce on gloo."""
    parts = (60.0, 20.0, 10.0)
    gather = Collective("all_gather", 90, "identity", parts)
    scatter = Collective("reduce_scatter", 90, "identity", parts)
    assert [gather.sent(rank, 3, 8) for rank in range(3)] == [120, 40, 20]
    assert [scatter.sent(rank, 3, 8) for rank in range(3)] == [30, 70, 80]
    whole = Collective("all_reduce", 90, "identity")
    halves = [Collective(kind, 90, "identity") for kind in ("reduce_scatter", "all_gather")]
    assert whole.sent(0, 3, 16) == sum(half.sent(0, 3, 16) for half in halves) == 240
    assert Collective("reduce_scatter", 90, "none").sent(0, 3, 32) == Collective("all_reduce", 90, "none").sent(
        0, 3, 32
    )


def test_a_burst_passes_after_a_silence_only() -> None:
    link = LinkSpeed(8.0, 0.0, burst_kb=50.0)  # a million bytes a second
    one = Collective("all_gather", 50_000, "none")  # a rank sends 100 kB
    assert one.seconds(2, 32, link) == pytest.approx(0.1)
    assert one.seconds(2, 32, link, gap_s=0.02) == pytest.approx(0.08)
    assert one.seconds(2, 32, link, gap_s=10.0) == pytest.approx(0.05)
