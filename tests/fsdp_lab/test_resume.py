"""The law of checkpoints: A to B to C is A to B, stop, resume, C, bit for bit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.distributed import preload
from tests.fsdp_lab.resuming import StopAfter, Training, train_all
from tests.fsdp_lab.test_train import Lab

preload("fsdp_lab.train")
METHODS: dict[str, dict[str, Any]] = {
    "none": {"comm_compress": "none"},
    "int8": {"comm_compress": "int8", "comm_config_json": '{"rounding": "stochastic"}'},
    "topk": {"comm_compress": "topk", "comm_config_json": '{"ratio": 0.05}'},
    "powersgd": {"comm_compress": "powersgd"},
    "sketch": {"comm_compress": "sketch"},
    "delta": {"comm_compress": "int4", "param_compress": "delta"},
}
STEPS, STOP = 16, 12  # the profiled window of stock collectives is over by then, and so is its shadow on samples
TIMES = ("time", "bw_", "tokens_per_s", "warmup", "comm_ratio", "_gb", "save", "overlap", "exposed")
OWN = {"run_name", "loss_curve", "config", "resumed_at_steps", "feedback_bytes"}


def flags(lab: Lab, name: str, **settings: Any) -> list[str]:
    return lab.flags(run_name=name, max_steps=STEPS, log_interval=1, eval_steps=STOP, grad_error_every=3, **settings)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Of every method a whole run, and one that is told to stop right before an evaluation, and goes on."""
    lab = Lab(tmp_path_factory.mktemp("resumed"))
    trainings = []
    for name, settings in METHODS.items():
        trainings += [
            Training(flags(lab, f"{name}-whole", **settings)),
            Training(flags(lab, f"{name}-stopped", **settings), StopAfter(STOP)),
            Training(flags(lab, f"{name}-stopped", **settings)),
        ]
    ended = train_all(trainings)
    assert ended == [None, "Preempted: a signal to another rank", None] * len(METHODS)
    return lab


def weights(lab: Lab, run: str) -> bytes:
    (file,) = (lab.folder / "out" / "runs" / run / "final_model").glob("*.safetensors")
    return file.read_bytes()


def curve(lab: Lab, run: str) -> list[dict[str, Any]]:
    lines = (lab.folder / "out" / "runs" / run / "curve.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("train_seconds", "sent_bytes")} for line in lines]


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_is_the_uninterrupted_one(runs: Lab, method: str) -> None:
    assert weights(runs, f"{method}-stopped") == weights(runs, f"{method}-whole")
    assert curve(runs, f"{method}-stopped") == curve(runs, f"{method}-whole")
    whole, stopped, resumed = [row for row in runs.rows() if row["run_name"].startswith(f"{method}-")]
    assert stopped["status"] == "preempted"
    assert stopped["saved_step"] == STOP
    assert resumed["resumed_at_steps"] == [STOP]
    differing = {name for name in whole if whole[name] != resumed[name]} - OWN
    assert not {name for name in differing if not any(word in name for word in TIMES)}
