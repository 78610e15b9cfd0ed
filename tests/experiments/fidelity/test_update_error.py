"""What updates lose, where it is known: nothing, everything, a factor, a step that came late."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core.rounds import AllGatherRounds, ReduceScatterRounds
from comm_compress.core.segments import segments_of
from comm_compress.core.state import State
from comm_compress.methods.identity import Identity, IdentityConfig
from experiments.fidelity import adam_updates, by_parameter, capture, update_error
from experiments.fidelity.adam_updates import measure
from experiments.fidelity.capture import GRADIENTS, PARAMETERS
from experiments.fidelity.captured import Unit, load
from tests.distributed import preload, run_program, torchrun_environment
from tests.fsdp_lab.models.virtual.test_ranks import save_tiny_model
from tests.fsdp_lab.test_train import Lab

preload("experiments.fidelity.capture")
WORLD, STEPS = 2, 16
SEGMENTS = segments_of([("w", (2 * 20, 30))], WORLD)


def gradients(seed: int = 0) -> list[Unit]:
    generator = torch.Generator().manual_seed(seed)
    steps = [[torch.randn(WORLD, 600, generator=generator) for _ in range(WORLD)] for _ in range(STEPS)]
    return [Unit("unit", SEGMENTS, steps)]


def parameters(momentum: float = 0.9) -> list[Unit]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(600, generator=generator) for _ in range(WORLD)]
    moved, steps = [torch.zeros(600)] * WORLD, []
    for _ in range(STEPS):
        moved = [momentum * m + 0.01 * torch.randn(600, generator=generator) for m in moved]
        rows = [row + m for row, m in zip(rows, moved, strict=True)]
        steps.append(rows)
    return [Unit("unit", SEGMENTS, steps)]


class Half(Identity):
    """Gives half of every gradient."""

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """As identity, of half the rows."""
        return (yield from super().reduce_scatter(rows / 2, state))


class Late(Identity):
    """Gathers the parameters of the step before."""

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """As identity, of the last row."""
        before = state.get("before")
        state.put("before", row.clone())
        return (yield from super().all_gather(row if before is None else before, state))


def given(monkeypatch: pytest.MonkeyPatch, method: cc.Compressor) -> None:
    monkeypatch.setattr(adam_updates, "_made", lambda *_: method)


def test_what_arrives_whole_has_no_error() -> None:
    line = measure(GRADIENTS, "identity", {}, gradients())
    assert (line.bits, line.error, line.size, line.behind) == (32, pytest.approx(0, abs=1e-9), pytest.approx(1), 0)
    assert (line.gradient_error, line.gradient_cosine) == (pytest.approx(0, abs=1e-6), pytest.approx(1))
    line = measure(PARAMETERS, "identity", {}, parameters())
    assert (line.bits, line.error, line.size, line.behind) == (32, 0, 0, 0)
    assert (line.gradient_error, line.gradient_cosine) == (None, None)
    assert measure(PARAMETERS, "delta", {"mode": "lossless"}, parameters()).error == 0


def test_what_never_arrives_is_behind() -> None:
    line = measure(GRADIENTS, "zero", {}, gradients())
    assert (line.error, line.size, line.behind) == (1, 0, 1)
    assert (line.gradient_error, line.gradient_cosine) == (1, None)


def test_adam_does_not_see_a_factor_but_half_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Half(IdentityConfig()))
    line = measure(GRADIENTS, "half", {}, gradients())
    assert line.error == pytest.approx(0, abs=1e-6)
    assert line.size == pytest.approx(1, abs=1e-6)
    assert line.behind == pytest.approx(0.5, abs=1e-6)
    assert (line.gradient_error, line.gradient_cosine) == (pytest.approx(0.5), pytest.approx(1))


def test_parameters_of_the_step_before_are_one_update_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Late(IdentityConfig()))
    line = measure(PARAMETERS, "late", {}, parameters())
    assert line.size == pytest.approx(1)
    assert line.behind == pytest.approx(1)


def test_feedback_lessens_the_error_and_a_dead_zone_lags() -> None:
    with_it, without = (measure(GRADIENTS, "int4", {"error_feedback": on}, gradients()) for on in (True, False))
    assert with_it.error < 0.6 * without.error
    dead_zone = {"values": {"method": "ecsq", "dead_zone": 0.9, "columns": False}}
    behind = [measure(PARAMETERS, "delta", c, parameters()).behind for c in ({"mode": "grid"}, dead_zone)]
    assert abs(behind[0]) < 0.02 < behind[1]


def forked(folder: Path, flags: list[str], ranks: int, program: list[str]) -> int:
    """`capture.train` without torchrun and the imports of its ranks."""
    where = ["--output_dir", str(folder / "out"), "--results_path", str(folder / "rows.jsonl"), "--no_save_model"]
    words = [*program[1:], *where, *flags]
    code, _, err = run_program(capture.main, [words] * ranks, torchrun_environment(ranks), timeout=240)
    assert code == 0, err
    return code


def test_a_real_run_captured_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "train", partial(forked, tmp_path))
    corpus = ["--data_path", str(Lab(tmp_path).folder / "corpus.json"), "--cache_dir", str(tmp_path / "cache")]
    save_tiny_model(tmp_path / "tiny")
    flags = ["--model_dir", str(tmp_path / "tiny"), "--batch_size", "1", "--max_length", "16", *corpus]
    flags += ["--mixed_precision", "bf16", "--val_fraction", "0.01"]
    capture.capture(tmp_path, range(1, 5), 2, [*flags, "--threads", "1", "--no_tensorboard", "--eval_steps", "0"])
    units = {kind: load(tmp_path, kind) for kind in (GRADIENTS, PARAMETERS)}
    for found in units.values():
        assert [(len(u.steps), len(u.steps[0])) for u in found] == [(4, 2)] * 3
    for reduced, gathered in zip(units[GRADIENTS], units[PARAMETERS], strict=True):
        assert reduced.name == gathered.name
        assert reduced.segments == gathered.segments
        assert gathered.steps[0][0].dtype == torch.float32, "not what bf16 arithmetic rounds them to"
        assert reduced.steps[0][0].shape == (2, gathered.steps[0][0].numel())
        assert all(not torch.equal(a[0], b[0]) for a, b in zip(gathered.steps, gathered.steps[1:], strict=False))
    capsys.readouterr()
    files = ["--json", str(tmp_path / "x.json"), "--markdown", str(tmp_path / "x.md")]
    assert update_error.main([str(tmp_path), "--methods", "int8", "delta", *files]) == 0
    printed = capsys.readouterr().out
    assert "| gradients by |" in printed
    assert "| parameters by |" in printed
    values = [json.loads(line) for line in (tmp_path / "x.json").read_text().splitlines()]
    assert {(v["kind"], v["method"]) for v in values} == {
        (GRADIENTS, "int8"), (PARAMETERS, "int8"), (PARAMETERS, "delta")
    }  # fmt: skip
    assert all(line in printed for line in (tmp_path / "x.md").read_text().splitlines())
    files = ["--json", str(tmp_path / "kinds.json"), "--markdown", str(tmp_path / "kinds.md")]
    assert by_parameter.main([str(tmp_path), "--gradients", "int4", "--parameters", "delta", *files]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "kinds.md").read_text() == printed.rstrip("\n") + "\n"
    values = [json.loads(line) for line in (tmp_path / "kinds.json").read_text().splitlines()]
    trained = sum(math.prod(s.shape) for unit in units[GRADIENTS] for s in unit.segments)
    assert sum(v["elements"] for v in values if v["kind"] == GRADIENTS) == trained
    assert all(0 < v["errors"]["int4"] <= 1 for v in values if v["kind"] == GRADIENTS)


def test_a_folder_without_captures_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        update_error.main([str(tmp_path)])
    assert "no captured gradients" in capsys.readouterr().err
