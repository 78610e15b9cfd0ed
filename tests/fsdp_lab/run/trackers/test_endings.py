"""What trackers are told of a run's end, and MLflow of a run that goes on.

Where the packages are not installed, small objects stand in for them, written after their documented interfaces:
MlflowClient of MLflow 3, wandb.Run of W&B 0.2x, trackio.Run. They show which calls we make, not what a server does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from fsdp_lab.ranks.preempt import Preempted, RankLostError
from fsdp_lab.run.run import Run
from fsdp_lab.run.trackers.choice import Trackers
from fsdp_lab.run.trackers.protocol import Status

ENDINGS: tuple[Status, ...] = ("ok", "failed", "preempted")


class MlflowException(Exception):  # noqa: N818 - MLflow's own name
    """What MLflow raises for a run that it does not know, and for a param that is to change."""


class Server:
    """An MLflow server with its client: runs with status, params and metrics."""

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}

    def __call__(self, tracking_uri: str) -> Server:  # MlflowClient(tracking_uri=...)
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7")

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        info = SimpleNamespace(
            run_id=f"run{len(self.runs)}", run_name=run_name, status="RUNNING", lifecycle_stage="active"
        )
        self.runs[info.run_id] = SimpleNamespace(info=info, data=SimpleNamespace(params={}, metrics=[]))
        return self.runs[info.run_id]

    def get_run(self, run_id: str) -> Any:
        if run_id not in self.runs:
            raise MlflowException(f"Run '{run_id}' not found")
        return self.runs[run_id]

    def update_run(self, run_id: str, status: str | None = None, name: str | None = None) -> None:
        self.get_run(run_id).info.status = status

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        self.get_run(run_id).info.status = status or "FINISHED"

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        data = self.get_run(run_id).data
        for name, value in params:
            if data.params.setdefault(name, value) != value:
                raise MlflowException("Changing param values is not allowed.")
        data.metrics += [(metric[0], metric[3]) for metric in metrics]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    modules: dict[str, dict[str, Any]] = {
        "mlflow": {"MlflowClient": server},
        "mlflow.entities": {"Param": lambda *values: values, "Metric": lambda *values: values},
        "mlflow.exceptions": {"MlflowException": MlflowException},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return server


def tracked(folder: Path, name: str, status: Status, done: int = 0, rate: float = 0.1) -> None:
    trackers = Trackers((name,), "mine", folder / "logs" / "mine" / "tensorboard", {"learning_rate": rate}, done)
    trackers.log(done + 1, {"train/loss": 5.0})
    trackers.finish(status)


@pytest.mark.parametrize(("status", "said"), [("ok", "FINISHED"), ("failed", "FAILED"), ("preempted", "KILLED")])
def test_mlflow_is_told_how_the_run_ended(server: Server, tmp_path: Path, status: Status, said: str) -> None:
    tracked(tmp_path, "mlflow", status)
    (run,) = server.runs.values()
    assert run.info.status == said


def test_a_resumed_run_goes_on_in_mlflow_and_is_running_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a setting that has changed, which MLflow would refuse to store."""
    tracked(tmp_path, "mlflow", "preempted")
    seen, store = list[str](), server.log_batch

    def watched(run_id: str, **what: Any) -> None:
        seen.append(server.runs[run_id].info.status)
        store(run_id, **what)

    monkeypatch.setattr(server, "log_batch", watched)
    tracked(tmp_path, "mlflow", "ok", done=5, rate=0.2)
    (run,) = server.runs.values()
    assert (run.info.status, run.data.metrics) == ("FINISHED", [("train/loss", 1), ("train/loss", 6)])
    assert run.data.params == {"learning_rate": "0.1"}
    assert seen == ["RUNNING"]


@pytest.mark.parametrize("what", ["begun anew", "unknown there", "deleted", "no file"])
def test_mlflow_begins_another_run_where_none_goes_on(server: Server, tmp_path: Path, what: str) -> None:
    tracked(tmp_path, "mlflow", "failed")
    kept = tmp_path / "logs" / "mine" / "mlflow_run_id"
    if what == "unknown there":
        kept.write_text("of another server")
    if what == "no file":
        kept.unlink()
    if what == "deleted":
        server.runs["run0"].info.lifecycle_stage = "deleted"
    tracked(tmp_path, "mlflow", "ok", done=0 if what == "begun anew" else 5)
    assert [run.info.status for run in server.runs.values()] == ["FAILED", "FINISHED"]
    assert kept.read_text() == "run1"


class Heard:
    """A run of W&B or trackio that keeps the calls which end it."""

    def __init__(self, **settings: Any) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.config, self.summary = SimpleNamespace(update=lambda *a, **k: None), dict[str, Any]()

    def log(self, values: Any, step: int) -> None:
        pass

    def mark_preempting(self) -> None:
        self.calls.append(("mark_preempting", None))

    def alert(self, title: str) -> None:
        self.calls.append(("alert", title))

    def finish(self, exit_code: int | None = None) -> None:
        self.calls.append(("finish", exit_code))


def ended(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, status: Status) -> list[tuple[str, Any]]:
    runs = list[Heard]()
    module = ModuleType(name)

    def begin(**settings: Any) -> Heard:
        runs.append(Heard())
        return runs[-1]

    vars(module).update(init=begin, Settings=lambda **settings: None)
    monkeypatch.setitem(sys.modules, name, module)
    tracked(folder, name, status)
    return runs[0].calls


def test_wandb_is_told_by_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [ended(monkeypatch, tmp_path, "wandb", status) for status in ENDINGS] == [
        [("finish", 0)],
        [("finish", 1)],
        [("mark_preempting", None), ("finish", 143)],
    ]


def test_trackio_gets_an_alert_of_a_run_that_did_not_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [ended(monkeypatch, tmp_path, "trackio", status) for status in ENDINGS] == [
        [("finish", None)],
        [("alert", "the run ended: failed"), ("finish", None)],
        [("alert", "the run ended: preempted"), ("finish", None)],
    ]


@contextmanager
def recorded(lost: str | None = None) -> Iterator[list[Status]]:
    """A run that has begun, without ranks; ``lost`` is what its ending says of another rank."""
    heard = list[Status]()
    nothing = SimpleNamespace(leave_bar=lambda: None, close=lambda: None)
    run = Run.__new__(Run)
    vars(run).update(
        has_begun=True,
        ending=cast(Any, SimpleNamespace(failed=lambda error: lost, over=lambda: None, say_at_once=lambda lost: True)),
        progress=nothing,
        watchdog=nothing,
        trackers=SimpleNamespace(finish=heard.append),
        closing=ExitStack(),
    )
    with run._recorded():
        yield heard


@pytest.mark.parametrize(
    ("error", "lost", "status", "raised"),
    [
        (None, None, "ok", None),
        (ValueError("ours"), None, "failed", RuntimeError),
        (MemoryError(), None, "failed", MemoryError),
        (Preempted("SIGTERM"), None, "preempted", Preempted),
        (Preempted("SIGTERM"), "rank 1 died", "failed", RankLostError),  # a launcher stops those that are left
    ],
)
def test_trackers_hear_what_the_row_says(
    error: BaseException | None, lost: str | None, status: Status, raised: type[BaseException] | None
) -> None:
    with pytest.raises(raised) if raised else nullcontext(), recorded(lost) as heard:
        if error is not None:
            raise error
    assert heard == [status]
