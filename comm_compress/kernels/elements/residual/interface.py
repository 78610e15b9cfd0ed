"""What error feedback encodes: the rows, and what earlier steps left out of them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual


class ResidualKernels(Protocol):
    """Writes the target of error feedback in one pass; `Residual.target` is its definition."""

    def write_target(self, rows: Tensor, residual: Residual) -> Tensor:
        """Write ``rows + decay * old`` to ``residual.new`` float32 ``[R, n]`` and return it.

        ``rows`` ``[R, n]`` are of any float dtype. The product and the sum are each rounded to float32.
        """
        ...
