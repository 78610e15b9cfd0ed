"""--cpu_offload changes where tensors lie, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fsdp_lab.settings.config import parse
from fsdp_lab.settings.models.presets import resolve
from fsdp_lab.settings.reading.fields import ConfigError
from tests.distributed import preload
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import Training, train_all

preload("fsdp_lab.train")


def test_a_run_is_the_same_and_goes_on(tmp_path: Any) -> None:
    """Rotary frequencies are buffers; delta reads the float32 shards themselves."""
    lab = Lab(tmp_path)
    common = {"model": "qwen3-nano", "vocab_size": 300, "comm_compress": "topk", "param_compress": "delta"}
    common |= {"max_steps": 6, "save_model": "false", "mixed_precision": "bf16", "grad_error_every": 3}
    offloaded = {**common, "cpu_offload": "true", "save_steps": 3}
    checkpoint = lab.folder / "out/runs/offloaded/checkpoints/step-00000003"
    flags = [
        lab.flags(run_name="kept", **common),
        lab.flags(run_name="offloaded", **offloaded),
        lab.flags(run_name="resumed", **offloaded, resume=checkpoint),
    ]
    assert train_all([Training(words) for words in flags]) == [None] * 3
    kept, moved, resumed = lab.rows()
    assert kept["val_loss"] == moved["val_loss"] == resumed["val_loss"]
    assert kept["bytes_compressed_by_op"] == moved["bytes_compressed_by_op"]
    assert kept["grad_rel_error"] == moved["grad_rel_error"]


def test_virtual_ranks_have_nothing_to_offload() -> None:
    with pytest.raises(ConfigError, match="cpu_offload: virtual ranks are not sharded"):
        resolve(parse(["--virtual_ranks", "2", "--cpu_offload", "true"]), has_gpu=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_holds_less(tmp_path: Any) -> None:
    """The default model's optimizer state alone is 8 bytes a parameter. One rank: nothing is sent."""
    lab = Lab(tmp_path)
    rows = []
    for offload in ("false", "true"):
        code, _, err = lab.launch(ranks=1, model="gpt2-62m", cpu_offload=offload, max_steps=4, save_model="false")
        assert code == 0, err
        rows.append(lab.rows()[-1])
    saved = (rows[0]["mem_peak_alloc_gb"] - rows[1]["mem_peak_alloc_gb"]) * 1e9
    assert saved > 8 * rows[0]["num_parameters"]
    assert rows[1]["val_loss"] == pytest.approx(rows[0]["val_loss"], rel=1e-2)
