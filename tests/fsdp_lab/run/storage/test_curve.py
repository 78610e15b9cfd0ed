"""The loss curve's file: strict JSON in whole lines, whatever becomes of the disk or the writer."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsdp_lab.run.storage.curve import Curve, seen_from

ROOT = Path(__file__).resolve().parents[4]


def test_a_curve_is_strict_json_with_short_numbers(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    curve = Curve(path)
    assert seen_from(tmp_path / "deep" / "results.jsonl", path) is None, "nothing written yet"
    curve.add(step=1, train_loss=1 / 3, val_ppl=math.inf)
    curve.add(step=123456789, sent_bytes=10**15)
    assert path.read_text() == (
        '{"step": 1, "train_loss": 0.3333333, "val_ppl": null}\n{"step": 123456789, "sent_bytes": 1000000000000000}\n'
    )
    assert seen_from(tmp_path / "deep" / "results.jsonl", path) == "../curve.jsonl"
    Curve(None).add(step=1)


def test_a_disk_that_takes_half_a_line_ends_the_curve_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    curve = Curve(tmp_path / "curve.jsonl")
    curve.add(step=1)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:3]))
        curve.add(step=2)
    curve.add(step=3)
    assert (tmp_path / "curve.jsonl").read_text() == '{"step": 1}\n'
    assert caplog.text.count("loss curve ends here") == 1


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    program = (
        "import itertools, sys, pathlib; from fsdp_lab.run.storage.curve import Curve\n"
        "curve = Curve(pathlib.Path(sys.argv[1]))\n"
        "for step in itertools.count(): curve.add(step=step, train_loss=step / 7, grad_norm=step / 3)"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT)
    while not path.exists() or path.stat().st_size < 50_000:
        assert writer.poll() is None
        time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    text = path.read_text()
    assert text.endswith("}\n")
    steps = [json.loads(line)["step"] for line in text.splitlines()]
    assert steps == list(range(len(steps)))
