"""Loss scaling for float16, by torch's own scaler: small gradients are multiplied until float16 can hold them."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler


class LossScaler(GradScaler):
    """torch's scaler, as it is: the scale begins at 65,536, is halved whenever a gradient overflows, and doubles again.

    For other dtypes than fp16 it does nothing at all. The ranks agree on the overflow (DTensor's own part in
    ``unscale_``: one all-reduce of one number), so their scales stay equal.
    """

    def __init__(self, device: torch.device, param_dtype: str) -> None:
        super().__init__(device.type, enabled=param_dtype == "fp16")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved scale; where none was saved (a run that was not in fp16 until now), from the first one."""
        if state:
            super().load_state_dict(state)
