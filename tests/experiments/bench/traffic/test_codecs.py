"""The codecs' benchmark: every method has its rows, the bytes are right, the files are written. Nothing is timed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import comm_compress as cc
from comm_compress.core.rounds import AllReduce
from comm_compress.drive import simulate
from comm_compress.kernels import dispatch
from experiments.bench.traffic.codecs import peers as peers_file, timing as codec_timing, variants
from experiments.bench.traffic.codecs.command import main
from experiments.bench.traffic.codecs.eager import eager, reference_kernels
from experiments.bench.traffic.codecs.peers import peers
from experiments.bench.traffic.codecs.timing import Run, Sample, Timing, measure, runs
from experiments.bench.traffic.codecs.unit import Unit
from experiments.bench.traffic.codecs.variants import label, variant
from experiments.fidelity.method_settings import TIMED_METHODS

CPU, MIB = torch.device("cpu"), 0.25
N = 1 << 16  # elements of such a unit
BYTES = 4 * N


@pytest.fixture(autouse=True)
def _threads_as_before() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def unit() -> Unit:
    return Unit(MIB, CPU)


def samples(method: str, config: dict[str, Any], unit: Unit) -> dict[str, Sample]:
    v = variant(method, config)
    return {s.operation: s for run in runs(v.plain, v.with_feedback, unit) for s in run.call()}


def test_every_registered_method_has_settings_to_be_timed_with() -> None:
    assert {*TIMED_METHODS, "none"} == set(cc.available())


@pytest.mark.parametrize(("method", "config"), [(m, c) for m, configs in TIMED_METHODS.items() for c in configs])
def test_every_method_is_measured_in_all_it_can_do(
    method: str, config: dict[str, Any], unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_timing, "WARM_UP", 1)
    v = variant(method, config)
    rows = {r.operation: r for r in measure(method, config, runs(v.plain, v.with_feedback, unit), unit, repeats=1)}
    assert "encode" in rows
    assert ({"sum W=2", "sum W=8"} <= rows.keys()) == v.plain.traits.for_gradients
    assert ("decode" in rows) == v.plain.traits.for_parameters
    assert any("with feedback" in operation for operation in rows) == (v.with_feedback is not None)
    for row in rows.values():
        assert row.roofline is not None
        assert all(math.isfinite(x) and x > 0 for x in (row.gb_s, row.memcpy_ratio, row.roofline))
        assert row.q1 <= row.seconds <= row.q3


def test_least_bytes_of_int8_are_input_codes_and_scales(unit: Unit) -> None:
    message = N + 4 * N // 256
    found = samples("int8", {}, unit)
    assert {name: s.least_bytes for name, s in found.items()} == {
        "encode": BYTES + message,
        "encode with feedback": 3 * BYTES + message,
        "sum W=2": message + BYTES // 2,
        "sum W=8": message + BYTES // 8,
        "decode": message + BYTES,
    }
    assert {s.input_bytes for s in found.values()} == {BYTES}


def test_least_bytes_of_all_rounds_count_every_request_and_answer(unit: Unit) -> None:
    found = samples("int8", {"scale": "global"}, unit)
    assert found["encode"].least_bytes == BYTES + 4  # up to the first request: the peak
    assert found["sum W=2"].least_bytes == N // 2 + BYTES // 2
    assert found["all rounds"].least_bytes == BYTES + 4 + 4 + N + N // 2 + BYTES // 2
    everything = found["all rounds"].least_bytes
    assert found["all rounds with feedback"].least_bytes == everything + 2 * BYTES


def test_delta_has_a_change_to_send(unit: Unit) -> None:
    v = variant("delta", {})
    (run,) = runs(v.plain, v.with_feedback, unit)
    row = BYTES // 2
    sent = [next(s.least_bytes for s in run.call() if s.operation == "encode") for _ in range(4)]
    assert sent[0] == row + row + 1  # the parameters as they are, and a flag
    assert all(row < bytes_moved < row + row // 6 for bytes_moved in sent[1:] if bytes_moved is not None)


def test_an_echo_is_what_lockstep_answers() -> None:
    request = AllReduce(torch.tensor([1.0, -2.0]), "sum")
    assert simulate.echo(request, 0, 3).tolist() == [3.0, -6.0]


def test_rows_and_peers_give_a_roofline_a_ratio_and_quartiles() -> None:
    row = Timing("int8", {}, "", "encode", 1, 9, 64, 80, 4.0, 3.0, 5.0, 64, 1.0)
    assert (row.memcpy_ratio, row.roofline) == (0.25, 80 / 128 / 4)
    assert row.gb_s == 16e-9


def test_a_slow_peer_is_measured_less_often_than_we_are(unit: Unit) -> None:
    def slow() -> list[Sample]:
        return [Sample("encode", 9.0, 1.0, BYTES, None)]

    rows = measure("int8", {}, [Run("", slow), Run("a peer", slow)], unit, repeats=5)
    assert [(row.implementation, row.samples) for row in rows] == [("", 5), ("a peer", 3)]


def test_eager_torch_is_the_reference_kernels_and_only_where_there_are_kernels(unit: Unit) -> None:
    v = variant("int8", {})
    before = dispatch.implementation
    with reference_kernels() as asked:
        runs(v.plain, None, unit)[0].call()
    assert asked == {"blocks"}
    assert dispatch.implementation is before
    assert {run.implementation for run in eager(v.plain, None, unit)} == {"eager torch"}
    assert eager(variant("powersgd", {}).plain, None, unit) == []


@pytest.mark.parametrize(("method", "config"), [(m, c) for m, configs in TIMED_METHODS.items() for c in configs])
def test_peers_run_or_are_not_installed(method: str, config: dict[str, Any], unit: Unit) -> None:
    found, missing = peers(method, config, unit)
    if found:
        operations = {s.operation for run in found for s in run.call()}
        assert operations <= samples(method, config, unit).keys()
    assert missing <= {"bitsandbytes 8-bit", "bitsandbytes nf4", "torchao int8"}


def test_from_flags_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, text, chart = (tmp_path / name for name in ("r.json", "r.md", "r.png"))
    flags = ["--methods", "bf16", "signsgd", "--mib", str(MIB), "--repeats", "2", "--threads", "1", "2"]
    assert main([*flags, "--json", str(record), "--markdown", str(text), "--chart", str(chart)]) == 0
    printed = capsys.readouterr()
    assert printed.out == text.read_text()
    assert "speed-up" in printed.out
    assert "signsgd majority" in printed.err
    assert chart.read_bytes().startswith(b"\x89PNG")

    found = json.loads(record.read_text())
    assert found.keys() == {"machine", "settings", "missing_peers", "failed", "rows"}
    machine = found["machine"]
    assert {"cpu", "cores", "caches", "device", "memory_gb_s", "versions"} <= machine.keys()
    assert machine["memory_gb_s"].keys() == {"1", "2"}
    assert {"torch", "numba"} <= machine["versions"].keys()
    derived = {"gb_s", "memcpy_ratio", "roofline"}
    assert all(row.keys() == {*Timing.__dataclass_fields__, *derived} for row in found["rows"])
    assert {row["implementation"] for row in found["rows"]} >= {"", "eager torch", "torch .to", "numpy"}
    ours = printed.out.partition("\n\n")[0].splitlines()
    assert len([line for line in ours if line.startswith("| bf16 | encode |")]) == 2  # for each number of threads


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--methods", "itn8"], "did you mean 'int8'?"),
        (["--methods", "none"], "none registers no hook"),
        (["--mib", "0.001"], "--mib: got 0.001"),
        (["--mib", "nan"], "--mib: got 'nan'"),
        (["--repeats", "0"], "--repeats: got '0'"),
        (["--threads", "1", "0"], "--threads: got '0'"),
        (["--json", "/no/such/folder/x.json"], "--json: the folder of"),
        (["--chart", "x.docx"], "--chart: x.docx must end in"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(flags)
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


def test_cuda_without_a_device_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stop:
        main(["--device", "cuda"])
    assert stop.value.code == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_a_method_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["--json", str(tmp_path / "rows.json"), "--markdown", str(tmp_path / "rows.md")]
    size = ["--mib", "0.25", "--repeats", "1", "--no_peers", "--methods", "bf16", "fp16", "identity"]

    def fails(v: variants.Variant, *given: Any) -> Any:
        if v.method == "identity":
            written = json.loads((tmp_path / "rows.json").read_text())
            assert {row["method"] for row in written["rows"]} == {"bf16"}, "written before the next one began"
        if v.method == "fp16":
            raise RuntimeError("no kernel for\nthis device")
        return measured(v, *given)

    measured = variants.measured
    monkeypatch.setattr(variants, "measured", fails)
    assert main([*size, *files]) == 1
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["failed"] == {"fp16": "RuntimeError: no kernel for this device"}
    assert {row["method"] for row in written["rows"]} == {"bf16", "identity"}
    assert "Failed: fp16: RuntimeError" in (tmp_path / "rows.md").read_text()
    assert "Failed: fp16: RuntimeError" in capsys.readouterr().out


def test_a_peer_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_file, "_cast", lambda *_: {}["no such name"])
    assert peers("bf16", {}, Unit(0.25, torch.device("cpu"))) == ([], {"torch .to (KeyError: 'no such name')"})


def test_labels_name_what_differs_from_the_defaults() -> None:
    assert label("int8", {}) == "int8"
    assert label("int8", {"hadamard": True, "block_size": 64}) == "int8 hadamard block_size=64"
    assert label("topk", {"values": {"method": "qsgd", "bits": 4}}) == "topk values: qsgd bits=4"
