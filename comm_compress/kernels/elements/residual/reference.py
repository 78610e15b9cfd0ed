"""What error feedback encodes: `Residual.target` is the definition."""

from __future__ import annotations

from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual


def write_target(rows: Tensor, residual: Residual) -> Tensor:
    return residual.target(rows)
