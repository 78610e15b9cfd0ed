"""The day with a GPU: what becomes of stages that end well, fail or take too long, and the next call after that."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.gpu_day import __main__ as gpu_day, archive, running
from experiments.gpu_day.archive import complaints, pack
from experiments.gpu_day.gpu_tests import Recorder, files
from experiments.gpu_day.index import Index
from experiments.gpu_day.table import ROOT, Stage, names, stages

WORKS = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); n = p.with_name('count'); n.open('a').write('x'); "
GOOD = WORKS + "p.write_text('{\"figure\": 1}'); print('measured')"
FAILS = "import sys; print('the last words', file=sys.stderr); sys.exit(3)"
BROKEN = WORKS + "p.write_text('{\"figure\": ')"
STUCK = WORKS + "p.write_text('{}'); import time; print('begun', flush=True); time.sleep(600)"


def stage(number: int, name: str, program: str, work: Path, limit_s: int = 60) -> Stage:
    command = (sys.executable, "-c", program, str(work / name / "out.json"))
    return Stage(number, name, f"what {name} is", "nothing", 1, limit_s, 1, (command,), ("out.json",))


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command with these stages, as a rehearsal in ``tmp_path``."""
    monkeypatch.setattr(running, "GRACE_S", 1)

    def call(programs: dict[str, str], *flags: str, limit_s: int = 60) -> int:
        def these(work: Path, *_: Any) -> list[Stage]:
            return [stage(i, name, text, work, limit_s) for i, (name, text) in enumerate(programs.items(), 1)]

        monkeypatch.setattr(gpu_day, "stages", these)
        monkeypatch.setattr(gpu_day, "names", lambda: list(programs))
        out, work = tmp_path / "out", tmp_path / "work"
        return gpu_day.main(["--rehearse", "--out", str(out), "--work", str(work), *flags])

    return call


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    state = json.loads((folder / "out" / "gpu_day.json").read_text())
    return {entry["name"]: entry for entry in state["stages"]}


def count(folder: Path, name: str) -> int:
    return len((folder / "work" / "rehearsal" / name / "count").read_text())


def test_no_stage_stops_another_and_only_what_is_missing_is_run_again(day: Callable[..., int], tmp_path: Path) -> None:
    assert day({"a": FAILS, "b": BROKEN, "c": STUCK, "d": GOOD}, limit_s=2) == 1
    found = entries(tmp_path)
    assert {name: entry["state"] for name, entry in found.items()} == {
        "a": "failed",
        "b": "failed",
        "c": "stopped",
        "d": "ok",
    }
    assert found["a"]["why"].startswith("exit code 3 of")
    assert found["a"]["last_lines"][-1] == "the last words"
    assert "out.json cannot be read" in found["b"]["why"]
    assert found["c"]["why"] == "its 2 seconds were up"
    assert found["c"]["last_lines"][-1] == "begun"
    with zipfile.ZipFile(tmp_path / "out" / "4-d.zip") as kept:
        assert json.loads(kept.read("out.json")) == {"figure": 1}
        assert "measured" in kept.read("log.txt").decode()
    page = (tmp_path / "out" / "gpu_day.md").read_text()
    assert "a rehearsal on the CPU" in page
    assert "| d | what d is | ok |" in page
    assert "    the last words" in page

    assert day({"a": GOOD, "b": GOOD, "c": GOOD, "d": GOOD}) == 0
    assert (count(tmp_path, "c"), count(tmp_path, "d")) == (2, 1), "what ended well is left alone"
    assert day({"a": GOOD, "b": GOOD, "c": GOOD, "d": GOOD}, "--again", "d", "--only", "d") == 0
    assert (count(tmp_path, "a"), count(tmp_path, "d")) == (1, 1), "and begins anew when it is asked for"


def test_stages_that_were_not_tried_come_before_those_that_failed(day: Callable[..., int], tmp_path: Path) -> None:
    assert day({"a": FAILS, "b": GOOD}, "--only", "a") == 1
    assert entries(tmp_path)["b"]["state"] == "not run"
    assert day({"a": GOOD, "b": GOOD}) == 0
    begun = [(tmp_path / "work" / "rehearsal" / name / "count").stat().st_mtime_ns for name in ("b", "a")]
    assert begun == sorted(begun)


def test_a_stage_is_not_begun_that_could_not_end(day: Callable[..., int], tmp_path: Path) -> None:
    assert day({"a": GOOD}, "--minutes", "0.1") == 1
    assert entries(tmp_path)["a"]["why"] == "not begun: 0 seconds were left, it needs 1"


def test_a_signal_leaves_the_index_whole(
    day: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(gpu_day, "run", stopped)
    with pytest.raises(SystemExit, match="143"):
        day({"a": GOOD, "b": GOOD})
    assert [entry["state"] for entry in entries(tmp_path).values()] == ["stopped", "not run"]
    assert entries(tmp_path)["a"]["why"] == "this program was stopped"


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        gpu_day.main(list(words))
    assert left.value.code == 2
    return capsys.readouterr().err


def test_mistakes_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "torch sees no CUDA device; --rehearse runs all stages" in refused(["--out", str(tmp_path / "x")], capsys)
    assert not (tmp_path / "x").exists()
    assert "give the folder for the results" in refused(["--rehearse"], capsys)
    assert "wants one of tests, codecs" in refused(["--rehearse", "--only", "codec"], capsys)
    (tmp_path / "gpu_day.json").write_text('{"rehearsal": false, "stages": []}')
    here = ["--rehearse", "--out", str(tmp_path)]
    assert "holds a day with a GPU, and this is a rehearsal" in refused(here, capsys)
    (tmp_path / "gpu_day.json").write_text('{"rehearsal": true, "stages": [{}]}')
    assert "is no index of such a day" in refused(here, capsys)


def test_the_index_of_a_real_day_has_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "NVIDIA H100, 999.1, 81559 MiB"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for rehearsal, said in ((False, "NVIDIA H100, 999.1, 81559 MiB"), (True, None)):
        folder = tmp_path / str(rehearsal)
        folder.mkdir()
        Index(folder, stages(Path("w"), rehearsal), rehearsal).write()
        assert json.loads((folder / "gpu_day.json").read_text())["driver"] == said
        assert (said or "a rehearsal on the CPU") in (folder / "gpu_day.md").read_text()


def test_the_plan_says_what_each_stage_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_day.main(["--plan"]) == 0
    said = capsys.readouterr().out
    for one in stages(Path("work"), rehearse=False):
        assert f"{one.name:10}{one.estimate_s:>7} s" in said
        assert one.needs in said
        assert one.least_s <= one.estimate_s <= one.limit_s
    assert sum(one.estimate_s for one in stages(Path("work"), rehearse=False)) <= 29 * 60


def test_a_rehearsal_runs_the_same_programs_and_expects_the_same_kinds_of_files() -> None:
    for real, small in zip(stages(Path("w"), False), stages(Path("w"), True), strict=True):
        modules = [command[2] for command in small.commands]
        assert [command[2] for command in real.commands] == [m for m in modules if not m.endswith("tiny_target")]
        assert [Path(name).suffix for name in real.results] == [Path(name).suffix for name in small.results]
    assert len(names()) + 2 <= 8, "files that a day may leave"


def test_what_is_too_large_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 5000)
    folder = tmp_path / "stage"
    for name, size in {"a.json": 100, "run/b.jsonl": 8000, "c.gz": 9000, "training/d.json": 10, "e.bin": 10}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(size))
    assert pack(folder, tmp_path / "out.zip") == ["c.gz", "run/b.jsonl"]
    assert zipfile.ZipFile(tmp_path / "out.zip").namelist() == ["a.json"]
    assert (tmp_path / "out.zip").stat().st_size <= 5000


def test_files_that_are_missing_or_cannot_be_read_are_named(tmp_path: Path) -> None:
    texts = {"good.json": "{}", "good.jsonl": "{}\n{}\n", "empty.md": " \n", "half.jsonl": '{}\n{"a"'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "half.json.gz").write_bytes(b"\x1f\x8b\x08")
    assert complaints(tmp_path, ["good.json", "good.jsonl"]) == []
    said = complaints(tmp_path, ["none.json", "empty.md", "half.jsonl", "half.json.gz"])
    assert said[:2] == ["none.json is not there", "empty.md is empty"]
    assert [line.partition(" cannot be read")[0] for line in said[2:]] == ["half.jsonl", "half.json.gz"]


def test_every_file_with_gpu_tests_is_found() -> None:
    found = {path.name for path in files(ROOT / "tests")}
    assert {"test_gpu.py", "test_triton_kernels.py", "test_recorded.py"} <= found


def test_outcomes_of_tests_are_written_as_they_come_and_no_test_is_begun_too_late(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "def test_none(): pytest.skip('no device')\n"
        "@pytest.mark.parametrize('n', range(20))\n"
        "def test_later(n):\n"
        "    import time\n"
        "    time.sleep(0.02)\n"
    )

    def run(seconds: float, *flags: str) -> dict[str, Any]:
        recorder = Recorder(tmp_path / "tests.json", seconds)
        words = ["-p", "no:cacheprovider", "-q", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
        pytest.main([*words, *flags], plugins=[recorder])
        recorder.write()
        written: dict[str, Any] = json.loads((tmp_path / "tests.json").read_text())
        return written

    whole = run(60)
    assert [whole[outcome] for outcome in ("passed", "failed", "skipped", "stopped_in_time")] == [21, 1, 1, False]
    assert "assert 1 == 2" in whole["tests"][1]["said"]
    assert "no device" in whole["tests"][2]["said"]
    late = run(0)
    assert (len(late["tests"]), late["stopped_in_time"]) == (1, True)
    several = run(0, "-n", "1")
    assert several["stopped_in_time"]
    assert len(several["tests"]) < 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_whole_rehearsal(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert gpu_day.main(["--rehearse", "--out", str(out), "--work", str(tmp_path / "work")]) == 0
    assert {path.name for path in out.iterdir()} == {
        "gpu_day.json",
        "gpu_day.md",
        *(one.archive for one in stages(Path("w"), True)),
    }
    for one in stages(Path("w"), True):
        with zipfile.ZipFile(out / one.archive) as kept:
            assert set(one.results) <= set(kept.namelist())
            assert kept.testzip() is None
    state = json.loads((out / "gpu_day.json").read_text())
    assert {entry["state"] for entry in state["stages"]} == {"ok"}
    assert state["rehearsal"] is True
