"""What error feedback hands to an encoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Residual(NamedTuple):
    """What earlier steps left out, and where to put what this one leaves out.

        target = rows + decay * old
        new    = target - decoded(encoded(target))

    ``old``: float32 or bfloat16 ``[R, n]``, or None when nothing waits. ``new``: float32 ``[R, n]``, contiguous,
    written; another memory than ``old``, so that a void step can be taken back, and than ``rows``.
    """

    old: Tensor | None
    decay: float
    new: Tensor

    def target(self, rows: Tensor) -> Tensor:
        """Write the target to ``new`` and return it."""
        if self.old is None:
            return self.new.copy_(rows)
        if self.decay == 1 and self.old.dtype == torch.float32:
            return torch.add(rows, self.old, out=self.new)
        # in float32, rounded after the product and after the sum: with alpha, torch fuses them on some machines
        return self.new.copy_(self.old).mul_(self.decay).add_(rows)
