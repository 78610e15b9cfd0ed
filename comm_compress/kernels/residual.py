"""What error feedback hands to an encoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Residual(NamedTuple):
    """What earlier steps left out, and where to put what this one leaves out.

        target = rows + decay * old
        new    = target - decoded(encoded(target))

    ``old``: float32 ``[R, n]``, or None when nothing waits. ``new``: float32 ``[R, n]``, contiguous, written; another
    memory than ``old``, so that a void step can be taken back.
    """

    old: Tensor | None
    decay: float
    new: Tensor

    def target(self, rows: Tensor) -> Tensor:
        """Write the target to ``new`` and return it."""
        if self.old is None:
            return self.new.copy_(rows)
        if torch.promote_types(rows.dtype, self.old.dtype) != self.new.dtype:  # two of bfloat16: summed in float32
            rows = self.new.copy_(rows)
        return torch.add(rows, self.old, alpha=self.decay, out=self.new)
