"""Facts about this machine that settings depend on."""

from __future__ import annotations

import torch

from fsdp_lab.settings.refusing.here import device_here, torch_version


def test_it_says_what_torch_says() -> None:
    major, minor = torch_version()
    assert torch.__version__.startswith(f"{major}.{minor}.")
    assert device_here() == ("cuda" if torch.cuda.is_available() else "cpu")
