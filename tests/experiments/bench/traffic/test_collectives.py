"""The benchmark of whole collectives: what it runs, counts and adds up. Nothing is timed against anything."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import comm_compress as cc
from comm_compress.core.workspace import WorkspacePool
from experiments.bench.traffic.collectives.command import main
from experiments.bench.traffic.collectives.loopback import Traffic, looped
from experiments.bench.traffic.collectives.measuring import made, measure, split, table, timed
from experiments.bench.traffic.collectives.parts import Clock
from experiments.bench.traffic.collectives.units import one_weight, units_of_model
from fsdp_lab.settings.models.presets import PRESETS


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_models_units_hold_all_its_parameters() -> None:
    units = units_of_model("gpt2-mini", 2)
    assert [unit.name for unit in units] == ["root", *(f"transformer.h.{i}" for i in range(4))]
    assert [unit.gathers for unit in units] == [1, 2, 2, 2, 2]
    assert 2.6e6 < sum(2 * unit.n for unit in units) < 2.7e6
    with pytest.raises(ValueError, match=r"--model: 'gpt3' is none of .*gpt2-mini"):
        units_of_model("gpt3", 2)
    assert "gpt2-mini" in PRESETS


def test_time_belongs_to_the_innermost_part() -> None:
    clock = Clock()

    def busy(milliseconds: int) -> None:
        end = time.thread_time() + milliseconds / 1e3
        while time.thread_time() < end:
            pass

    def outer() -> None:
        busy(20)
        clock.timed("kernel", busy, 40)

    clock.reset()
    clock.timed("torch", outer)
    busy(10)
    reading = clock.reading()
    for part, milliseconds in (("torch", 20), ("kernel", 40), ("python", 10)):
        assert 0.9 * milliseconds < 1e3 * reading[part] < 1.5 * milliseconds + 1, part  # type: ignore[index]
    assert clock.calls == {"torch": 1, "kernel": 1}


def test_hooks_send_what_the_methods_say() -> None:
    """Identity gives W times the rows, and a second gather of the same parameters costs delta no change."""
    unit = units_of_model("gpt2-mini", 2)[1]
    exact, delta = cc.make("identity"), cc.make("delta")
    plain = Traffic(unit, 2, exact, exact, WorkspacePool())
    with looped(Clock()):
        for call in plain.step():
            call.prepare()
            call.run()
    assert torch.equal(plain._reduced, 2 * plain._gradients[0][0])
    assert torch.equal(plain._gathered, plain._parameters[0].expand(2, -1))
    assert plain.ledger.totals().sent_bytes == 3 * 4 * unit.n
    changes, sent = Traffic(unit, 2, None, delta, WorkspacePool()), list[int]()
    with looped(Clock()):
        for _ in range(2):
            for call in changes.step():
                call.prepare()
                call.run()
                sent.append(changes.ledger.totals().sent_bytes)
    assert (sent[0], sent[1] - sent[0], sent[3] - sent[2]) == (4 * unit.n + 9, 8, 8)
    assert 8 < sent[2] - sent[1] < unit.n


def test_parts_add_up_and_calls_are_counted() -> None:
    arms = [made("int8 + int8", "1024", [one_weight(1024, 2)], 2), made("ecsq", "1024", [one_weight(1024, 2)], 2)]
    lines = measure(arms, 2)
    assert [(line.arm, line.op) for line in lines] == [
        ("int8 + int8", "all_gather"),
        ("int8 + int8", "reduce_scatter"),
        ("ecsq", "reduce_scatter"),
    ]
    for line in lines:
        ms = line.milliseconds()
        parts = ("python", "torch", "kernel", "allocation", "ledger")
        assert sum(ms[part] for part in parts) == pytest.approx(ms["codec"])
        assert ms["fixed"] == pytest.approx(ms["codec"] - ms["memory"])
        assert line.calls["kernel"] >= 2
        assert line.calls["torch"] > 10
        assert len(line.codec) == len(line.parts) == 2
    assert lines[0].sent_bytes == 512 + 4 * 2
    assert table(lines).count("\n") == 4


@pytest.mark.parametrize("label", ["delta + int8", "int8 + topk", "int88", "int8 + int8 + int8"])
def test_an_arm_that_makes_no_sense_is_refused(label: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--arms", label, "--elements"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lines.json"
    assert main(["--arms", "int8 + int8", "--model", "--elements", "1024", "--repeats", "1", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert [line["op"] for line in record["lines"]] == ["all_gather", "reduce_scatter"]
    assert record["settings"]["elements"] == [1024]
    assert capsys.readouterr().out.count("| 1024 | int8 + int8 |") == 2


def test_a_watched_collective_sends_what_a_timed_one_sends() -> None:
    arm = made("int8", "1024", [one_weight(1024, 2)], 2)
    for run in (timed, split, timed, split):
        arm.step(run)
    (line,) = arm.lines.values()
    assert line.sent_bytes == 520
    assert arm.traffic[0].ledger.totals().sent_bytes == 4 * 520
