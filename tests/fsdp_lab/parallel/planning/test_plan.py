"""Properties that every plan has, whatever the devices."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.planning import plan as planning
from fsdp_lab.parallel.planning.devices import Device, Devices, LinearTime, LinkSpeed
from fsdp_lab.parallel.planning.job import Candidate, Job, Methods
from fsdp_lab.parallel.planning.plan import ALL, plan
from fsdp_lab.parallel.planning.steps.division import predict_layout
from fsdp_lab.parallel.planning.steps.pipelines import PIPELINES, predict_pipeline
from fsdp_lab.parallel.planning.steps.work import PARTS, counts_by
from fsdp_lab.parallel.planning.table import flags, table

JOB = Job.of("gpt2-mini", 4, 128)
STOCK = Methods()
INT8 = Methods("int8", "int8", {"int8": 8.125})


def devices(*gflops: float, mbit: float = 200.0, memory_mb: float = 0.0) -> Devices:
    return Devices([Device(f"d{i}", g, memory_mb) for i, g in enumerate(gflops)], LinkSpeed(mbit, 0.2))


def best(candidates: Sequence[Candidate], layout: str) -> Candidate:
    return next(one for one in candidates if one.layout == layout)


def seconds(candidate: Candidate) -> float:
    assert candidate.prediction is not None
    return candidate.prediction.step_s


@pytest.mark.parametrize("model", ["gpt2-mini", "bert-mini", "qwen3-nano"])
def test_equal_devices_get_equal_shares(model: str) -> None:
    job = Job.of(model, 6, 96)
    for world in (2, 3):
        if job.shape.key_heads % world:
            continue
        for one in plan(devices(*[40.0] * world), job, [STOCK, INT8], list(LAYOUTS)):
            assert len(set(one.shares)) == 1, one


def test_shares_are_all_there_is() -> None:
    generator = random.Random(1)
    for world in (2, 2, 3):
        speeds = [generator.uniform(5, 50) for _ in range(world)]
        for one in plan(devices(*speeds), JOB, [STOCK]):
            if one.layout in LAYOUTS:
                counts = counts_by(JOB, one.layout, one.shares)
                totals = {"heads": 6, "columns": 768, "positions": 128, "words": 4096}
                assert {what: sum(each) for what, each in counts.items()} == {what: totals[what] for what in counts}
                assert all(min(each) > 0 for each in counts.values())
            if one.layout in PIPELINES:
                assert sum(one.shares) == 4


@pytest.mark.parametrize("layout", [*LAYOUTS, *PIPELINES])
def test_more_speed_never_means_less_work(layout: str) -> None:
    mine = []
    for speed in (10, 15, 20, 30, 45, 70, 100, 160):
        one = best(plan(devices(float(speed), 20.0, mbit=1e6), JOB, [STOCK], [layout]), layout)
        mine.append(one.shares[0] / sum(one.shares))
    assert mine == sorted(mine)
    assert mine[-1] > mine[0]


@pytest.mark.parametrize("layout", ALL)
def test_a_faster_link_never_means_a_longer_step(layout: str) -> None:
    for shares in ((1, 1), (3, 1)):
        times = []
        for mbit in (10, 50, 200, 1000, 10000):
            found = plan(devices(30.0, 10.0, mbit=mbit), JOB, [INT8], [layout])
            times.append(seconds(found[0]))
            assert all(seconds(found[0]) <= seconds(other) for other in found)
        assert times == sorted(times, reverse=True), shares
        assert times[0] > 1.5 * times[-1]


def test_compression_sends_less_and_helps_behind_a_slow_link() -> None:
    found = plan(devices(30.0, 30.0, mbit=20), JOB, [STOCK, INT8])
    for layout in ("tp", "galaxy", "sp", "fsdp"):
        int8 = next(one for one in found if one.layout == layout and "int8" in (one.methods.activations,))
        stock = next(one for one in found if one.layout == layout and one.methods == STOCK)
        assert seconds(int8) < seconds(stock)


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_the_best_of_all(seed: int) -> None:
    """Against every division of the heads, columns and positions that `Wiring` would make of any shares."""
    generator = random.Random(seed)
    parts = {
        f"{layout}.{part}": LinearTime(generator.random() * 1e-3, generator.random() * 1e-2)
        for layout, own in PARTS.items()
        for part in own
    }
    slower = {name: LinearTime(line.fixed, line.slope * generator.uniform(1, 5)) for name, line in parts.items()}
    measured = {"model": JOB.model, "sequences": 4, "length": 128}
    link = LinkSpeed(generator.uniform(50, 5000), 0.1)
    both = Devices([Device("a", 1.0, parts=parts), Device("b", 1.0, parts=slower)], link, measured)
    for layout in LAYOUTS:
        chosen = best(plan(both, JOB, [STOCK], [layout]), layout)
        finest = []
        for first in range(1, planning.GRAIN):
            try:
                finest.append(predict_layout(both, JOB, layout, (first, planning.GRAIN - first), STOCK).step_s)
            except ValueError:
                continue
        assert seconds(chosen) == pytest.approx(min(finest))
    for schedule in PIPELINES:
        chosen = best(plan(both, JOB, [STOCK], [schedule]), schedule)
        each = [predict_pipeline(both, JOB, schedule, (n, 4 - n), STOCK).step_s for n in (1, 2, 3)]
        assert seconds(chosen) == pytest.approx(min(each))


def test_what_does_not_fit_is_refused_with_the_reason() -> None:
    for one in plan(devices(30.0, 10.0, memory_mb=10), JOB, [STOCK]):
        assert "needs" in one.refused
        assert "has 10" in one.refused
    roomy = plan(devices(30.0, 10.0, memory_mb=500), JOB, [STOCK])
    assert not any(one.refused for one in roomy)


def test_what_does_not_fit_comes_last_however_fast() -> None:
    quick = plan(devices(30.0, 30.0, mbit=1e7), JOB, [STOCK], ["ddp", "galaxy", "gpipe"])
    held = {one.layout: max(one.prediction.memory) / 1e6 for one in quick if one.prediction}
    assert quick[-1].layout != "ddp"
    between = (held["ddp"] + held["galaxy"]) / 2
    found = plan(devices(30.0, 30.0, mbit=1e7, memory_mb=between), JOB, [STOCK], ["ddp", "galaxy", "gpipe"])
    assert found[-1].layout == "ddp"
    assert [bool(one.refused) for one in found] == sorted(bool(one.refused) for one in found)


def test_memory_changes_shares_where_the_fast_device_is_small() -> None:
    free = best(plan(devices(30.0, 10.0), JOB, [STOCK], ["tp"]), "tp")
    assert free.prediction is not None
    limit_mb = 0.9 * free.prediction.memory[0] / 1e6
    small = devices(30.0, 10.0)
    tight = replace(small, devices=[replace(small.devices[0], memory_mb=limit_mb), small.devices[1]])
    held = best(plan(tight, JOB, [STOCK], ["tp"]), "tp")
    assert not held.refused
    assert held.prediction is not None
    assert held.prediction.memory[0] <= limit_mb * 1e6
    assert held.shares != (1, 1), "the best that fits, and not what is at hand"
    assert held.shares[0] / sum(held.shares) < free.shares[0] / sum(free.shares)
    assert seconds(held) > seconds(free)


def test_what_cannot_be_is_named() -> None:
    found = {one.layout: one for one in plan(devices(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), JOB, [STOCK])}
    assert "heads" in found["tp"].refused
    assert "4 blocks do not make 7 stages" in found["1f1b"].refused
    assert "sequences: 4 do not divide among 7" in found["fsdp"].refused
    assert not found["sp"].refused


def test_a_plan_is_sorted_and_told() -> None:
    found = plan(devices(30.0, 10.0), JOB, [STOCK, INT8])
    times = [seconds(one) for one in found]
    assert times == sorted(times)
    lines = table(found).splitlines()
    assert len(lines) == 1 + len(found)
    assert lines[1].split()[0] == found[0].layout
    galaxy = next(one for one in found if one.layout == "galaxy" and one.methods == INT8 and one.shares != (1, 1))
    assert f"--tp 2 --layout galaxy --shares {galaxy.shares[0]},{galaxy.shares[1]} --activation 'int8'" in flags(
        galaxy, JOB
    )
    stages = next(one for one in found if one.layout == "1f1b" and one.shares == (3, 1))
    assert f"--pp 2 --pp_schedule 1f1b --pp_micro_batches {JOB.micro_batches} --shares 3,1" in flags(stages, JOB)


def test_times_that_were_measured_count_for_their_batch_only() -> None:
    parts = {f"{layout}.{part}": LinearTime(1.0, 0.0) for layout, own in PARTS.items() for part in own}
    measured = {"model": JOB.model, "sequences": 4, "length": 128}
    both = Devices([Device("a", 30.0, parts=parts)] * 2, LinkSpeed(200), measured)
    here, elsewhere = plan(both, JOB, [STOCK], ["tp"])[0], plan(both, Job.of("gpt2-mini", 4, 64), [STOCK], ["tp"])[0]
    assert seconds(here) > 4 * 3
    assert seconds(elsewhere) < 1


def test_a_job_that_is_none_is_refused() -> None:
    for arguments, message in (
        (("gpt2-mini", 4, 512), "256 positions"),
        (("gpt2-mini", 0, 16), "1 or more"),
        (("gpt2-mini", 4, 16, 3), "micro_batches: 4 sequences do not make 3"),
    ):
        with pytest.raises(ValueError, match=message):
            Job.of(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="how many bits"):
        plan(devices(1.0, 1.0), JOB, [Methods("int3", "int3")], ["tp"])


def test_four_unequal_devices() -> None:
    """The way downhill: no exchange of one unit between two ranks makes it better."""
    speeds = (40.0, 25.0, 15.0, 8.0)
    job = Job.of("gpt2-62m", 8, 128)
    for layout in LAYOUTS:
        one = best(plan(devices(*speeds, mbit=1e5), job, [STOCK], [layout]), layout)
        assert list(one.shares) == sorted(one.shares, reverse=True)
        whole = [share * 64 // sum(one.shares) for share in one.shares]
        for a, b in itertools.permutations(range(4), 2):
            other = [x - (i == a) + (i == b) for i, x in enumerate(whole)]
            if min(other) > 0:
                moved = math.inf
                try:
                    moved = predict_layout(devices(*speeds, mbit=1e5), job, layout, other, STOCK).step_s
                except ValueError:
                    continue
                assert moved >= seconds(one) - 1e-12


def test_planning_needs_no_torch() -> None:
    program = "import sys; from fsdp_lab.parallel.planning import plan, table; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
