"""Which trackers a run is to have, and what is said where one cannot be had."""

from __future__ import annotations

import pytest

from fsdp_lab import extras
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing.early import checked


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], ("tensorboard",)),
        (["--no_tensorboard"], ()),
        (["--trackers", "wandb"], ("tensorboard", "wandb")),
        (["--trackers", "tensorboard,wandb"], ("tensorboard", "wandb")),
        (["--trackers", "mlflow, wandb,mlflow", "--no_tensorboard"], ("mlflow", "wandb")),
    ],
)
def test_the_trackers_of_a_run(flags: list[str], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda package: package)
    assert checked(TrainConfig, flags).run.tracker_names == names


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tracker_whose_package_is_missing_is_refused_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda package: None if package == name else package)
    with pytest.raises(ConfigError) as refused:
        checked(TrainConfig, ["--trackers", f"tensorboard,{name}"])
    assert refused.value.complaints == [f"trackers: {name} is not installed: pip install 'fsdp-comm-compress[{name}]'"]


@pytest.mark.parametrize("given", ["comet", "wandb,", "wandb mlflow", ""])
def test_an_unknown_tracker_is_refused_with_those_that_there_are(given: str) -> None:
    with pytest.raises(ConfigError, match="one or more of tensorboard, wandb, mlflow, trackio, by commas"):
        checked(TrainConfig, ["--trackers", given])


def test_trackers_do_not_affect_the_training() -> None:
    assert TrainConfig.of(trackers="wandb").digest() == TrainConfig.of().digest()
