"""Schedules that older torch cannot run on a CPU are refused before ranks start."""

from __future__ import annotations

import pytest

from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.fields import ConfigError
from fsdp_lab.settings.refusing import pipelines
from fsdp_lab.settings.refusing.early import checked

FLAGS = ["--pp", "2", "--pp_schedule"]


def _refused(monkeypatch: pytest.MonkeyPatch, schedule: str, torch: tuple[int, int], device: str = "cpu") -> list[str]:
    monkeypatch.setattr(pipelines, "torch_version", lambda: torch)
    monkeypatch.setattr(pipelines, "device_here", lambda: device)
    try:
        checked(TrainConfig, [*FLAGS, schedule])
    except ConfigError as error:
        return error.complaints
    return []


def test_zbv_needs_a_newer_torch_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _refused(monkeypatch, "zbv", (2, 11)) == [
        "pp_schedule: zbv on a CPU needs torch 2.13, this is 2.11; take interleaved or 1f1b"
    ]
    assert not _refused(monkeypatch, "zbv", (2, 13))
    assert not _refused(monkeypatch, "zbv", (2, 11), "cuda")
    assert not _refused(monkeypatch, "interleaved", (2, 11))
