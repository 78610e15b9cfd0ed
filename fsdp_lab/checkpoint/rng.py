"""The global random generators of one process: python's, numpy's, torch's and this rank's GPU's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def rng_state(device: torch.device) -> dict[str, Any]:
    """Where all generators stand, as plain values and tensors."""
    legacy = np.random.get_state(legacy=False)
    assert isinstance(legacy, dict)
    inner = legacy["state"]
    state: dict[str, Any] = {
        "python": list(random.getstate()[1]),
        "python_gauss": random.getstate()[2],
        "numpy": torch.from_numpy(inner["key"].astype(np.int64)),
        "numpy_rest": [int(inner["pos"]), int(legacy["has_gauss"]), float(legacy["gauss"])],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Have all generators go on from what `rng_state` gave."""
    random.setstate((3, tuple(state["python"]), state["python_gauss"]))
    position, has_gauss, gauss = state["numpy_rest"]
    np.random.set_state(("MT19937", state["numpy"].numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
