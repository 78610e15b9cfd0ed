"""Trackers: what they are given arrives, and none of them can harm the run."""

from __future__ import annotations

import json
import logging
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from fsdp_lab.run.trackers.choice import Trackers
from fsdp_lab.run.trackers.guarded import Guarded
from fsdp_lab.run.trackers.protocol import Status

SETTINGS = {"learning_rate": 0.003, "model": None, "comm_config_json": {"ratio": 0.01}, "tensorboard": True}


def begun(names: tuple[str, ...], folder: Path, done: int = 0) -> Trackers:
    return Trackers(names, "mine", folder / "logs" / "mine" / "tensorboard", SETTINGS, done)


def track(names: tuple[str, ...], folder: Path) -> None:
    """A short run that all trackers are shown alike."""
    trackers = begun(names, folder)
    trackers.log(10, {"train/loss": 5.5, "reduce_scatter/sent_bytes": 250.0, "fidelity/density": None})
    trackers.log(20, {"train/loss": 4.5, "val/ppl": float("nan")})
    trackers.log_row(20, {"val_ppl": 90.0, "status": "ok", "reached_target": True, "steps": 20})
    trackers.finish("ok")
    trackers.log(30, {"train/loss": 1.0})  # too late: nothing happens


class Recorder:
    """A tracker that fails or hangs where a test says so."""

    name, requires_logging_directory, tracker = "recorder", False, None

    def __init__(self, fails_at: str = "", hangs_at: str = "") -> None:
        self.fails_at, self.hangs_at, self.heard = fails_at, hangs_at, list[tuple[str, Any]]()
        self.go_on = threading.Event()

    def _hear(self, what: str, value: Any = None) -> None:
        if what == self.hangs_at:
            self.go_on.wait(30)
        if what == self.fails_at:
            raise SystemExit("no\naccount")
        self.heard.append((what, value))

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        self._hear("settings", dict(values))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._hear("log", (step, dict(values)))

    def finish(self, status: Status) -> None:
        self._hear("finish", status)


def test_a_tracker_hears_all_in_order() -> None:
    recorder = Recorder()
    guarded = Guarded("recorder", lambda: recorder, {"a": 1})
    guarded.log({"x": 1.0}, 1)
    guarded.log({"x": 2.0}, 2)
    guarded.finish("ok")
    heard = [("settings", {"a": 1}), ("log", (1, {"x": 1.0})), ("log", (2, {"x": 2.0})), ("finish", "ok")]
    assert recorder.heard == heard


@pytest.mark.parametrize("where", ["settings", "log", "finish"])
def test_a_tracker_that_fails_is_left_with_one_warning(where: str, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(fails_at=where)
    with caplog.at_level(logging.WARNING):
        guarded = Guarded("recorder", lambda: recorder, {})
        for step in range(3):
            guarded.log({"x": 1.0}, step)
        guarded.finish("ok")
    assert [record.getMessage() for record in caplog.records] == [
        "tracker recorder ended, the training goes on: SystemExit: no account"
    ]
    assert "finish" not in dict(recorder.heard)


@pytest.mark.parametrize("where", ["settings", "log"])
def test_a_tracker_that_hangs_is_not_waited_for(where: str, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(hangs_at=where)
    with caplog.at_level(logging.WARNING):
        guarded = Guarded("recorder", lambda: recorder, {}, start_s=0.05)
        guarded.log({"x": 1.0}, 1)
        guarded.finish("ok", patience_s=0.05)
    (record,) = caplog.records
    assert "recorder: not finished after 0.05 s" in record.getMessage()
    recorder.go_on.set()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_has_scalars_settings_and_the_final_row(tmp_path: Path) -> None:
    track(("tensorboard",), tmp_path)
    events = tmp_path / "logs" / "mine" / "tensorboard"
    assert scalars(events) == {
        "train/loss": [(10, 5.5), (20, 4.5)],
        "reduce_scatter/sent_bytes": [(10, 250.0)],
        "row/val_ppl": [(20, 90.0)],
        "row/steps": [(20, 20.0)],
    }
    content = EventAccumulator(str(events)).Reload().PluginTagToContent(hparams_metadata.PLUGIN_NAME)
    start = HParamsPluginData.FromString(content[hparams_metadata.SESSION_START_INFO_TAG]).session_start_info
    settings = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert settings == {
        "learning_rate": 0.003, "model": "none", "comm_config_json": '{"ratio": 0.01}', "tensorboard": True,
    }  # fmt: skip
    experiment = HParamsPluginData.FromString(content[hparams_metadata.EXPERIMENT_TAG]).experiment
    assert "row/val_ppl" in {metric.name.tag for metric in experiment.metric_infos}


def test_a_resumed_run_goes_on_with_its_events_also_with_those_of_the_old_place(tmp_path: Path) -> None:
    """Before they had a folder of their own they lay beside it, and what came after the checkpoint is forgotten."""
    first = begun(("tensorboard",), tmp_path)
    for step in (1, 2, 3, 4):
        first.log(step, {"train/loss": 1.0})
    first.finish("preempted")
    events = tmp_path / "logs" / "mine" / "tensorboard"
    for path in events.iterdir():
        path.rename(events.parent / path.name)
    second = begun(("tensorboard",), tmp_path, done=3)
    for step in (4, 5, 6):
        second.log(step, {"train/loss": 1.0})
    second.finish("ok")
    assert [step for step, _ in scalars(events)["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert [path.name for path in events.parent.iterdir()] == ["tensorboard"]


def test_mlflow_keeps_settings_and_numbers_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    track(("mlflow",), tmp_path)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "logs" / "mine" / "mlflow").as_uri())
    (experiment,) = [e for e in client.search_experiments() if e.name == "fsdp-lab"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params == {
        "learning_rate": "0.003", "model": "none", "comm_config_json": '{"ratio": 0.01}', "tensorboard": "True",
    }  # fmt: skip
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(10, 5.5), (20, 4.5)]
    assert run.data.metrics["row/val_ppl"] == 90


def records(content: bytes) -> Iterator[bytes]:
    """What a .wandb file holds: a head of 7 bytes, then blocks of records as LevelDB's log has them."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        size, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        if 32768 - at % 32768 < 7:  # too little left of the block for another record's head
            at += 32768 - at % 32768
            continue
        parts, at = parts + content[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield parts
            parts = b""


def test_wandb_keeps_them_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    proto: Any = import_module("wandb.proto.wandb_internal_pb2")

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    track(("wandb",), tmp_path)
    (file,) = tmp_path.glob("logs/mine/wandb/wandb/offline-run-*/run-*.wandb")
    history, summary, config = list[tuple[int, float]](), dict[str, Any](), dict[str, Any]()
    while not any(proto.Record.FromString(r).HasField("exit") for r in records(file.read_bytes())):
        time.sleep(0.1)  # a process of its own writes the file, also after the run has ended
    for record in map(proto.Record.FromString, records(file.read_bytes())):
        for items, kept in (
            (record.config.update, config),
            (record.run.config.update, config),
            (record.summary.update, summary),
        ):
            kept.update({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        if values := {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}:
            history.append((record.history.step.num, values["train/loss"]))
    assert history == [(10, 5.5), (20, 4.5)]
    assert summary["row/val_ppl"] == 90
    assert config["comm_config_json"] == {"ratio": 0.01}


def test_trackio_keeps_them_in_its_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    track(("trackio",), tmp_path)
    logs = SQLiteStorage.get_logs("fsdp-lab", "mine")
    assert [(log["step"], log["train/loss"]) for log in logs if "train/loss" in log] == [(10, 5.5), (20, 4.5)]
    assert logs[-1]["row/val_ppl"] == 90
