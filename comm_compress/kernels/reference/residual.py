"""What error feedback encodes: the definition is `Residual.target`."""

from __future__ import annotations

from torch import Tensor

from comm_compress.kernels.common.residual import Residual


def residual_target(rows: Tensor, residual: Residual) -> Tensor:
    """Write ``rows + decay * old`` to ``residual.new`` and return it."""
    return residual.target(rows)
