"""The law of checkpoints: A to B to C is A to B, stop, resume, C, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_lab import results
from fsdp_lab.checkpoint.files.folder import Manifest
from fsdp_lab.checkpoint.files.safe_load import load_own
from tests.distributed import preload
from tests.fsdp_lab.test_train import Lab
from tests.fsdp_lab.training_ranks import StopAfter, Training, train_all

preload("fsdp_lab.train")
HOOKED = {"param_compress": "identity"}  # no direction that has to be watched through a profiler, which is slow
STEPS, STOP = 6, 3
# the profiled window of stock collectives is over by then, and so are the steps that overflow
LONGER = {"none": (12, 9), "fp16": (12, 9)}
METHODS: dict[str, dict[str, Any]] = {
    "none": {"comm_compress": "none"},
    "int8": {"comm_compress": "int8", "comm_config_json": '{"rounding": "stochastic"}', **HOOKED},
    "topk": {"comm_compress": "topk", "comm_config_json": '{"ratio": 0.05}', "eval_steps": STOP, **HOOKED},
    "powersgd": {"comm_compress": "powersgd", **HOOKED},
    "sketch": {"comm_compress": "sketch", **HOOKED},
    "delta": {"comm_compress": "identity", "param_compress": "delta"},
    "muon": {
        "comm_compress": "topk",
        "comm_config_json": '{"ratio": 0.05}',
        "optimizer": "muon",
        "optimizer_compress": "delta",
        **HOOKED,
    },
    # one token a rank: its gradient overflows at the first loss scale, so the scale to go on with is another
    "fp16": {"comm_compress": "topk", "mixed_precision": "fp16", "max_length": 2, "batch_size": 1, **HOOKED},
}
MEASURED = ("time", "_gb", "save", "exposed")  # beside the times of a row
OWN = {"run_name", "loss_curve", "config", "resumed_at_steps", "feedback_bytes"}
OWN |= {"git_dirty"}  # of the checkout, in which other tests may have files for a moment


def flags(lab: Lab, name: str, **settings: Any) -> list[str]:
    fixed = {"max_steps": STEPS, "log_interval": 1, "save_model": "false", "save_steps": 3}
    return lab.flags(run_name=name, **{**fixed, **settings})


def checkpoint(lab: Lab, run: str, step: int) -> Path:
    return lab.folder / "out" / "runs" / run / "checkpoints" / f"step-{step:08d}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("resumed"))


def settings_of(lab: Lab, method: str) -> dict[str, Any]:
    settings = {"grad_error_every": 0, **METHODS[method]}
    if method == "sketch":  # and a stream that is shuffled as it goes
        settings |= {"data_mix": lab.mix(), "shuffle_documents": 8, "shuffle_rows": 4}
    return settings


@pytest.fixture(scope="module")
def trained(lab: Lab) -> Lab:
    """A whole run of each method, and one from its checkpoint before the evaluation on; all on ranks started once."""
    trainings = []
    for method in METHODS:
        steps, stop = LONGER.get(method, (STEPS, STOP))
        settings = {"max_steps": steps, **settings_of(lab, method)}
        trainings.append(Training(flags(lab, f"{method}-whole", **settings)))
        settings["resume"] = checkpoint(lab, f"{method}-whole", stop)
        trainings.append(Training(flags(lab, f"{method}-resumed", **settings)))
    assert train_all(trainings, tiny=True) == [None] * len(trainings)
    return lab


@pytest.fixture(scope="module", params=METHODS)
def method(trained: Lab, request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runs(trained: Lab) -> Lab:
    """Those, and one of top-k that is told to stop before its evaluation, has saved nothing until then, and goes on."""
    lab = trained
    stopped = [*flags(lab, "topk-stopped", grad_error_every=0, **METHODS["topk"]), "--save_steps", "0"]
    ended = train_all([Training(stopped, event=StopAfter(STOP)), Training(stopped)], tiny=True)
    assert ended == ["Preempted: SIGTERM to rank 1", None]
    return lab


def row(lab: Lab, run: str) -> dict[str, Any]:
    return [row for row in lab.rows() if row["run_name"] == run][-1]


def curve(lab: Lab, run: str) -> list[dict[str, Any]]:
    lines = (lab.folder / "out" / "runs" / run / "curve.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "train_seconds"} for line in lines]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(lab: Lab, method: str) -> None:
    steps, _ = LONGER.get(method, (STEPS, STOP))
    whole, resumed = (checkpoint(lab, f"{method}-{how}", steps) for how in ("whole", "resumed"))
    files = [
        {entry.name: entry.sha256 for entry in Manifest.read(path).files if entry.name.startswith("weights/__")}
        for path in (whole, resumed)
    ]
    assert len(files[0]) == 2, "a part of model and optimizer for each rank"
    assert files[0] == files[1]
    for rank in range(2):
        one, other = (load_own(path / f"rank-{rank}.pt") for path in (whole, resumed))
        for part in ("compressors", "data", "also", "schedule", "rng"):
            assert same(one[part], other[part]), part
        assert same(one["run"]["losses"], other["run"]["losses"])


def test_its_row_and_curve_are_the_uninterrupted_ones_but_for_times(lab: Lab, method: str) -> None:
    steps, stop = LONGER.get(method, (STEPS, STOP))
    whole, resumed = row(lab, f"{method}-whole"), row(lab, f"{method}-resumed")
    differing = {name for name in whole if whole[name] != resumed[name]} - OWN - set(results.TIMES)
    assert not {name for name in differing if not any(word in name for word in MEASURED)}
    assert resumed["resumed_at_steps"] == [stop]
    assert whole["saves"] == resumed["saves"]
    assert whole["saves"] == steps // 3 or (method == "fp16" and whole["saves"] == 3), "all, or one less: a void step"
    tail = [line for line in curve(lab, f"{method}-whole") if line["step"] > stop or "val_loss" in line]
    assert curve(lab, f"{method}-resumed") == tail


def test_a_run_that_is_told_to_stop_saves_and_goes_on(runs: Lab) -> None:
    stopped, resumed = (row for row in runs.rows() if row["run_name"] == "topk-stopped")
    whole = row(runs, "topk-whole")
    assert (stopped["status"], stopped["saved_step"]) == ("preempted", STOP)
    assert resumed["val_loss"] == whole["val_loss"]
    assert resumed["bytes_compressed_total"] == whole["bytes_compressed_total"]
    assert (stopped["saves"], resumed["saves"]) == (1, 1)
    assert curve(runs, "topk-stopped") == curve(runs, "topk-whole"), "no line twice, none lost"
    assert (checkpoint(runs, "topk-stopped", STOP).parent / "finished").exists()


@pytest.fixture(scope="module")
def others(runs: Lab) -> dict[str, str | None]:
    """What trainings that go on from top-k's whole run ended with, by name: some must not, some may after all."""
    methods = {"grad_error_every": 0, **METHODS["topk"]}
    path = {"resume": checkpoint(runs, "topk-whole", STOP)}
    runs_folder = runs.folder / "out" / "runs"
    for name in ("damaged", "never", "early"):
        shutil.copytree(runs_folder / "topk-whole", runs_folder / name, symlinks=True)
        (runs_folder / name / "checkpoints" / "finished").unlink()
    (checkpoint(runs, "damaged", STEPS) / "rank-1.pt").write_bytes(b"short")
    shutil.rmtree(runs_folder / "early" / "checkpoints")
    (runs_folder / "early" / "checkpoints" / "step-00000003.tmp").mkdir(parents=True)  # killed in its first save
    one_rank = {"resume_resharded": "true", "batch_size": 4}
    trainings = {
        "damaged": Training(flags(runs, "damaged", **methods)),
        "never": Training(flags(runs, "never", resume="never", **methods)),
        "early": Training(flags(runs, "early", **methods)),
        "topk-stopped": Training(flags(runs, "topk-stopped", **methods)),
        "changed": Training(flags(runs, "changed", learning_rate=0.5, **methods, **path)),
        "one": Training(flags(runs, "one", **methods, **path), ranks=1),
        "odd": Training(flags(runs, "odd", resume_resharded="true", batch_size=5, **methods, **path), ranks=1),
        "resharded": Training(flags(runs, "resharded", **methods, **path, **one_rank), ranks=1),
        "missing": Training(flags(runs, "missing", **methods, resume=runs.folder / "nothing")),
    }
    virtual = {"virtual_ranks": 2, "grad_error_every": 0, **METHODS["muon"]}
    trainings["virtual-whole"] = Training(flags(runs, "virtual-whole", **virtual), ranks=1)
    virtual["resume"] = checkpoint(runs, "virtual-whole", STOP)
    trainings["virtual-resumed"] = Training(flags(runs, "virtual-resumed", **virtual), ranks=1)
    return dict(zip(trainings, train_all(list(trainings.values()), tiny=True), strict=True))


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_goes_on(runs: Lab, others: dict[str, str | None]) -> None:
    assert others["damaged"] is None
    assert row(runs, "damaged")["resumed_at_steps"] == [STOP]
    assert row(runs, "damaged")["val_loss"] == row(runs, "topk-whole")["val_loss"]
    assert curve(runs, "damaged") == curve(runs, "topk-whole")
    kept = checkpoint(runs, "damaged", STEPS)
    assert kept.is_dir()
    assert kept.with_name(f"{kept.name}.damaged").is_dir()


def test_a_run_killed_before_its_first_checkpoint_begins_again(runs: Lab, others: dict[str, str | None]) -> None:
    assert others["early"] is None
    assert row(runs, "early")["resumed_at_steps"] == []
    assert row(runs, "early")["val_loss"] == row(runs, "topk-whole")["val_loss"]
    assert curve(runs, "early") == curve(runs, "topk-whole")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("never", ["run_name", "exists already"]),
        ("topk-stopped", ["run_name", "exists already"]),
        ("changed", ["learning_rate: was 0.004, is 0.5", "--resume_changed"]),
        ("one", ["of 2 ranks, these are 1", "--resume_resharded"]),
        ("odd", ["batch_size: was 2, is 5"]),
        ("missing", ["nothing", "manifest.json", "missing"]),
    ],
)
def test_what_would_not_be_exact_is_refused(
    runs: Lab, others: dict[str, str | None], name: str, words: list[str]
) -> None:
    for word in words:
        assert word in str(others[name])
    if name in ("changed", "one", "odd", "missing"):
        assert not (runs.folder / "out" / "runs" / name).exists(), "the name is free again"
    assert not [row for row in runs.rows() if row["run_name"] == name and row["status"] != "ok"][1:]


def test_virtual_ranks_go_on_too(runs: Lab, others: dict[str, str | None]) -> None:
    assert others["virtual-whole"] is others["virtual-resumed"] is None
    whole, resumed = row(runs, "virtual-whole"), row(runs, "virtual-resumed")
    assert resumed["val_loss"] == whole["val_loss"] == row(runs, "muon-whole")["val_loss"]
    assert resumed["bytes_compressed_total"] == whole["bytes_compressed_total"]


def test_another_number_of_ranks_goes_on_closely(runs: Lab, others: dict[str, str | None]) -> None:
    assert others["resharded"] is None
    whole, resharded = row(runs, "topk-whole"), row(runs, "resharded")
    assert resharded["tokens_seen"] == whole["tokens_seen"]
    assert resharded["world_size"] == 1
    assert resharded["val_loss"] == pytest.approx(whole["val_loss"], rel=1e-4)
