"""What error feedback hands to an encoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Residual(NamedTuple):
    """What earlier steps left out, and where to put what this one leaves out.

        target = rows + decay * old
        new    = target - decoded(encoded(target))

    ``old``: float32 or bfloat16 ``[R, n]``, or None when nothing waits. ``new``: float32 ``[R, n]``, contiguous, is
    written; another memory than ``old``, so that a void step can be taken back.
    """

    old: Tensor | None
    decay: float
    new: Tensor

    def target(self, rows: Tensor) -> Tensor:
        """Write the target to ``new`` and return it."""
        if self.old is None:
            return self.new.copy_(rows)
        if rows.dtype != torch.float32:  # two bfloat16 tensors would be added in bfloat16
            return self.new.copy_(rows).add_(self.old, alpha=self.decay)
        return torch.add(rows, self.old, alpha=self.decay, out=self.new)
