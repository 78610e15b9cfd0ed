"""The command `fsdp-lab plan`: with a file of devices, with mistakes, and with ranks that are measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.planning import __main__ as command, checking
from fsdp_lab.parallel.planning.devices import Devices
from fsdp_lab.parallel.planning.job import Job, Methods
from fsdp_lab.parallel.planning.plan import plan
from tests.distributed import preload

preload("experiments.bench.traffic.layouts.ranks")
preload("fsdp_lab.parallel.planning.measuring.measure")
BY_HAND = {
    "devices": [{"gflops": 30, "memory_mb": 900}, {"gflops": 10, "memory_mb": 900}],
    "link": {"mbit_per_s": 190, "latency_ms": 0.3},
}


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(BY_HAND))
    return path


def test_a_file_of_devices_is_planned_for(devices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--model", "gpt2-mini", "--devices", str(devices)]) == 0
    out = capsys.readouterr().out
    assert "estimated from gflops" in out
    assert "best: --model gpt2-mini --tp 2 --layout tp --shares" in out
    assert "Left out are local steps (outer), and what other\noptimizers compute and exchange" in out
    assert "demo, onebit_adam, dion, ef21_muon, zero_one_adam" in out
    assert command.main(["--devices", str(devices), "--rate", "100gbit", "--layouts", "tp"]) == 0
    assert "link: 9.564e+04 Mbit/s" in capsys.readouterr().out


def test_nothing_fits(devices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--devices", str(devices), "--memory_mb", "5"]) == 1
    out = capsys.readouterr().out
    assert "refused: rank 0 (devices[0]) needs" in out
    assert "nothing fits" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "gpt2-minni"], "did you mean gpt2-mini"),
        (["--activation", "itn8"], "itn8"),
        (["--activation", "int8 entropy=rans"], "no fixed size"),
        (["--activation", "powersgd"], "powersgd cannot carry activations"),
        (["--gradients", "itn8"], "itn8"),
        (["--rate", "200"], "rate: got '200'"),
        (["--quota", "1.0"], "quota: 1 given for 2 ranks"),
        (["--quota", "1.0", "0.01"], "quota: got 0.01"),
        (["--length", "512"], "256 positions"),
        (["--micro_batches", "3"], "micro_batches: 4 sequences"),
        (["--memory_mb", "1", "2", "3"], "memory_mb: 3 given for 2 ranks"),
        (["--json", "x.json"], "json: is the table of --check"),
        (["--devices", "DEVICES", "--ranks", "3"], "ranks: 3 given"),
        (["--devices", "DEVICES", "--quota", "1.0", "0.5"], "quota: belongs to a measurement"),
        (["--devices", "DEVICES", "--check", "2"], "check: runs on this machine's ranks"),
        (["--devices", "missing.json"], "wants a file"),
    ],
)
def test_mistakes_are_one_message(
    words: list[str], message: str, devices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([str(devices) if word == "DEVICES" else word for word in words])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_check_needs_a_network_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "unavailable", lambda: "network namespaces need root; start this with sudo")
    with pytest.raises(SystemExit) as ended:
        command.main(["--check", "2"])
    assert ended.value.code == 2
    assert (
        "check: runs the ranks on a network of their own, and network namespaces need root" in capsys.readouterr().err
    )


def test_what_is_checked() -> None:
    job = Job.of("gpt2-mini", 4, 128)
    found = plan(Devices.of(BY_HAND), job, [Methods(), Methods("int8", "int8", {"int8": 8.125})])
    some = checking.chosen(found, 3)
    assert some[:3] == found[:3]
    assert some[-1] == [one for one in found if not one.refused][-1]
    best = found[0]
    assert any(one.shares == (1, 1) and one.layout == best.layout and one.methods == best.methods for one in some)
    measured: list[dict[str, Any]] = [{"step_s": 1.0 + i, "interface_bytes": 1} for i in range(len(some))]
    lines = checking.beside(some, measured)
    text = checking.table(some, lines)
    assert "the planned one took 1.00 times the fastest" in text
    assert f"the slowest took {float(len(some)):.2f} times the planned one" in text
    assert "with equal shares took" in text


@pytest.mark.netns
@pytest.mark.usefixtures("forked_ranks")
def test_ranks_are_measured_and_the_plan_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything once, small: measured behind a link with a quota, planned, the best candidate and the slowest run."""
    words = ["--rate", "200mbit", "--quota", "1.0", "0.8", "--sequences", "2", "--length", "32", "--repeats", "1"]
    words += ["--layouts", "tp", "fsdp", "gpipe", "--check", "1", "--steps", "1"]
    files = ["--write", str(tmp_path / "devices.json"), "--json", str(tmp_path / "check.json")]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert command.main([*words, *files]) == 0
    devices = Devices.read(tmp_path / "devices.json")
    assert devices.world == 2
    assert 100 < devices.link.mbit_per_s < 210
    assert devices.are_measured_for("gpt2-mini", 2, 32)
    assert {"tp.attention", "sp.rest", "galaxy.mlp", "whole.ends"} <= devices.devices[0].parts.keys()
    assert {"all_reduce none", "reduce_scatter_parts int8"} <= devices.link.costs.keys()
    lines = json.loads((tmp_path / "check.json").read_text())["lines"]
    for line in lines:
        assert line["step_s"] > 0
        assert line["predicted_bytes"] == pytest.approx(line["interface_bytes"], rel=0.1)
    assert "predictions are off by" in capsys.readouterr().out
