"""Facts about this machine that settings depend on."""

from __future__ import annotations

import pytest
import torch

from fsdp_lab.settings.refusing.here import device_here, torch_version


def test_the_version_is_that_of_the_torch_that_is_imported() -> None:
    major, minor = torch_version()
    assert torch.__version__.startswith(f"{major}.{minor}.")


@pytest.mark.parametrize(("has_gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_a_gpu_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch, has_gpu: bool, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert device_here() == device
