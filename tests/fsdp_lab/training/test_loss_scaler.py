"""float16 with loss scaling: what overflows is skipped by all ranks alike, and costs the run nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy

from fsdp_lab.results.validation import problems
from fsdp_lab.settings.config import parse
from fsdp_lab.settings.groups import OptimConfig
from fsdp_lab.settings.models.presets import resolve
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.training.loss_scaler import LossScaler
from fsdp_lab.training.optim import build_optimizer, take_step
from tests.comm_compress.integrations.test_fsdp import batch, full, loss_of, sharded, worst
from tests.distributed import preload, run_ranks
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import Training, train_all

preload("fsdp_lab.train")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The same training in float32, in float16, in float16 with a gradient that overflows at first, and with NaN."""
    lab = Lab(tmp_path_factory.mktemp("fp16"))
    common = {"comm_compress": "topk", "comm_config_json": '{"ratio": 0.1}', "param_compress": "identity"}
    common |= {"max_steps": 16, "warmup_steps": 2, "save_model": "false", "grad_error_every": 8}
    changed: dict[str, dict[str, Any]] = {
        "fp32": {},
        "fp16": {"mixed_precision": "fp16"},
        "overflowing": {"mixed_precision": "fp16", "max_length": 2, "batch_size": 1},
        "broken": {"mixed_precision": "fp16", "max_steps": 30, "max_nonfinite_steps": 3},
    }
    flags = {name: lab.flags(run_name=name, **{**common, **settings}) for name, settings in changed.items()}
    ended = train_all([Training(flags[name], fault="nan:rank=1" * (name == "broken")) for name in flags], tiny=True)
    assert ended[:3] == [None] * 3
    assert "3 steps in a row" in str(ended[3])
    assert [problems(row) for row in lab.rows()] == [[]] * 4
    return {row["run_name"]: row for row in lab.rows()}


def test_it_trains_as_float32_does(rows: dict[str, dict[str, Any]]) -> None:
    single, half = rows["fp32"], rows["fp16"]
    assert (single["param_dtype"], half["param_dtype"]) == ("fp32", "fp16")
    assert half["val_loss"] == pytest.approx(single["val_loss"], rel=1e-3)
    assert half["train_loss"] == pytest.approx(single["train_loss"], rel=1e-3)
    assert half["grad_rel_error"] == pytest.approx(single["grad_rel_error"], rel=0.05), "the scale is in neither"
    assert half["bytes_raw_by_op"]["all_gather"] == single["bytes_raw_by_op"]["all_gather"] / 2
    assert (single["loss_scale"], single["scaler_skipped_steps"]) == (None, None)
    assert (half["loss_scale"], half["scaler_skipped_steps"]) == (65536, 0)


def test_what_overflows_is_skipped_and_said(rows: dict[str, dict[str, Any]]) -> None:
    """One token a rank: the gradient of its logits is the scale itself, which float16 cannot hold at first."""
    row = rows["overflowing"]
    assert (row["status"], row["nonfinite_steps"]) == ("ok", 0)
    assert 1 <= row["scaler_skipped_steps"] < 5
    assert row["loss_scale"] == 65536 / 2 ** row["scaler_skipped_steps"]


def test_what_no_scale_mends_ends_the_run(rows: dict[str, dict[str, Any]]) -> None:
    """From 65,536 to 1 sixteen steps are the scaler's; those after it count."""
    row = rows["broken"]
    assert row["status"] == "failed"
    assert "3 steps in a row" in row["error"]


def _one_rank_overflows() -> dict[str, Any]:
    """Stock FSDP2: no hook of ours tells the other rank."""
    model = sharded(MixedPrecisionPolicy(torch.float16, torch.float32))
    config = OptimConfig(learning_rate=0.1, warmup_steps=0)
    optimizer, schedule = build_optimizer(model, config, total_steps=4)
    scaler = LossScaler(torch.device("cpu"), "fp16")
    before, outcomes = full(model), []
    for step in range(2):
        loss = loss_of(model, batch(dist.get_rank(), step))
        if step == 0 and dist.get_rank() == 1:
            loss = loss * 1e4
        scaler.scale(loss).backward()
        outcomes.append(take_step(model, optimizer, schedule, 1.0, scaler=scaler))
        if step == 0:
            assert worst(before, full(model)) == 0
    assert worst(before, full(model)) > 0
    return {
        "taken": [o.taken for o in outcomes],
        "scales": [o.loss_scale for o in outcomes],
        "next": scaler.get_scale(),
    }


def test_ranks_agree_on_an_overflow_of_one() -> None:
    for seen in run_ranks(2, _one_rank_overflows):
        assert seen == {"taken": [False, True], "scales": [65536, 32768], "next": 32768}


def test_gradients_that_float16_cannot_hold_without_a_scale_are_refused_at_once() -> None:
    half = ["--mixed_precision", "fp16", "--comm_dtype", "fp16", "--comm_compress", "int8"]
    with pytest.raises(ConfigError, match="comm_dtype: gradients of mixed_precision fp16"):
        resolve(parse(half), has_gpu=False)
    resolve(parse([*half, "--comm_compress", "none"]), has_gpu=False)
    with pytest.raises(ConfigError, match="virtual ranks compute in bfloat16 or float32"):
        resolve(parse(["--mixed_precision", "fp16", "--virtual_ranks", "2"]), has_gpu=False)
