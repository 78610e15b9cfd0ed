"""What this machine has, as far as settings depend on it; torch is imported only to ask whether there is a GPU."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version


def device_here() -> str:
    """Return "cuda" where there is a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def torch_version() -> tuple[int, int]:
    """Return major and minor number of the torch that is installed; (99, 0) where none is, which ranks say."""
    try:
        major, minor = re.findall(r"\d+", version("torch"))[:2]
    except PackageNotFoundError:
        return (99, 0)
    return int(major), int(minor)
