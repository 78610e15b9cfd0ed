"""Traces that torch.profiler records here: two ranks over gloo, and (with a GPU) one whose peer is its twin."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import comm_compress as cc
from experiments.gpu_day import loopback
from fsdp_lab.measure.profiling import Window, phase
from fsdp_lab.trace import Profile, rank_profile, read
from fsdp_lab.trace.profile import read_folder
from tests.distributed import run_ranks

STEPS, WARMUP = 2, 2
Moved = dict[str, tuple[int, int, int]]  # per collective: calls, raw and sent bytes a step


def train(folder: str, device: str, compressed: bool) -> Moved:
    """Four profiled-or-not steps of a small model; what the ledger says of those in the window."""
    torch.manual_seed(0)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)), nn.Linear(64, 8)).to(device)
    for block in model[:3]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    handle = None
    if compressed:
        handle = cc.attach(model, reduce_scatter=cc.make("int8", {"error_feedback": True}), all_gather=cc.make("int8"))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    window = Window(WARMUP + 1, STEPS, Path(folder), dist.get_rank())
    seen: dict[str, cc.Totals] = {}
    for step in range(1, WARMUP + STEPS + 2):
        if handle is not None and step in (window.first, window.last + 1):
            for op in ("reduce_scatter", "all_gather"):
                now = handle.ledger.totals(op)  # type: ignore[arg-type]
                seen[op] = now - seen.get(op, cc.Totals()) if step > window.first else now
        window.begin_step(step)
        with phase("forward"):
            loss = model(torch.randn(16, 64, device=device)).square().mean()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        window.end_step()
        dist.all_reduce(torch.zeros(1, device=device))  # between steps: nobody's
        window.collect(step)
    return {op: (t.calls // STEPS, t.raw_bytes // STEPS, t.sent_bytes // STEPS) for op, t in seen.items()}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Moved]]:
    folder = tmp_path_factory.mktemp("logs") / "profiler"
    return folder, run_ranks(2, train, str(folder), "cpu", True)


def test_the_traces_bytes_are_the_ledgers(recorded: tuple[Path, list[Moved]]) -> None:
    folder, ledgers = recorded
    traces = read_folder(folder)
    assert [trace.rank for trace in traces] == [0, 1]
    for trace, ledger in zip(traces, ledgers, strict=True):
        profile = rank_profile(trace)
        assert len(profile.steps) == STEPS
        for step in profile.steps:
            moved = {op: (t.count, t.raw_bytes, t.sent_bytes) for op, t in step.collectives.items()}
            assert moved == ledger, "and no all-reduce: that was between steps"


def test_classes_lie_within_the_step(recorded: tuple[Path, list[Moved]]) -> None:
    for trace in read_folder(recorded[0]):
        for step in rank_profile(trace).steps:
            for times in (step.whole, *step.phases.values()):
                assert 0 <= times.compute + times.compression <= times.total, "one thread: they never overlap"
                assert times.compression_under_compute == times.communication_under_compression == 0
                parts = times.compute + times.exposed_communication + times.exposed_compression + times.idle
                assert parts == pytest.approx(times.total, abs=1e-6)
            assert all(step.phases[p].compute > 0 for p in ("forward", "backward", "optimizer"))
            assert step.phases["forward"].communication > 0, "all-gathers"
            assert step.phases["backward"].compression > 0
            assert step.phases["optimizer"].compression == 0
            assert sum(t.milliseconds for t in step.collectives.values()) == pytest.approx(step.whole.communication)


def test_stock_collectives_are_found_by_their_shapes(tmp_path: Path) -> None:
    run_ranks(2, train, str(tmp_path), "cpu", False)
    profile = Profile([rank_profile(trace) for trace in read_folder(tmp_path)])
    numels = [64 * 64 + 64] * 3 + [64 * 8 + 8]
    found = {op: (t.count, t.raw_bytes, t.sent_bytes) for op, t in profile.mean.collectives.items()}
    half = [n // 2 * 4 for n in numels]
    assert found["reduce_scatter"] == (4, sum(half), 2 * sum(half))
    assert found["all_gather"][0] == 7, "the last unit stays whole for backward"
    assert found["all_gather"][1] == found["all_gather"][2] == 2 * sum(half) - half[3]
    assert profile.mean.whole.compression == 0
    assert profile.mean.whole.communication > 0


def test_nothing_half_written_is_left(recorded: tuple[Path, list[Moved]]) -> None:
    assert sorted(path.name.split(".", 1)[0] for path in recorded[0].iterdir()) == ["rank0", "rank1"]
    for path in recorded[0].iterdir():
        assert path.name.endswith(".pt.trace.json")
        assert json.loads(path.read_text())["distributedInfo"]["world_size"] == 2


@pytest.mark.skipif(importlib.util.find_spec("torch_tb_profiler") is None, reason="needs torch-tb-profiler")
def test_the_traces_open_in_tensorboards_plugin(recorded: tuple[Path, list[Moved]]) -> None:
    command = [sys.executable, "-m", "tensorboard.main", "--host", "127.0.0.1", "--port", "0", "--logdir"]
    board = subprocess.Popen([*command, str(recorded[0].parent)], stderr=subprocess.PIPE, text=True)
    try:
        assert board.stderr is not None
        said = next(line for line in board.stderr if "http://" in line)
        base = said[said.index("http://") :].split()[0] + "data/plugin/pytorch_profiler/"
        deadline = time.monotonic() + 60
        while not ask(f"{base}runs")["runs"]:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert set(ask(f"{base}views?run=profiler")) >= {"Overview", "Operator", "Trace", "Distributed"}
        assert ask(f"{base}workers?run=profiler&view=Overview") == ["rank0", "rank1"]
    finally:
        board.kill()
        board.wait()


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_trace(tmp_path: Path) -> None:
    """Kernels of encoding are compression, and classes fill the step. (One rank alone would encode nothing.)"""
    with loopback.joined():
        train(str(tmp_path / "traces"), "cuda", True)
    (path,) = (tmp_path / "traces").iterdir()
    profile = rank_profile(read(path))
    assert profile.device == "cuda"
    for step in profile.steps:
        assert step.phases["forward"].compute > 0
        assert step.phases["forward"].compression > 0
        assert step.phases["backward"].compression > 0
        assert step.whole.total == pytest.approx(sum(times.total for times in step.phases.values()))
