"""Error feedback inside CPU kernels: the target is in registers only, what it loses is written at once.

    x = load(rows, i, end)
    if old.size:
        x = x + decay * load(old, i, end)    # rounded twice, as `Residual.target` is
    ...
    if new.size:
        store(new, i, end, x - decoded)

in every kernel: as an inlined function, given arrays, it would count references in the innermost loop.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from comm_compress.kernels.numba_tools import Array
from comm_compress.kernels.residual import Residual
from comm_compress.kernels.vectors import bits_of

NOTHING: Array = np.empty(0, np.float32)


def target_arrays(rows: Tensor, residual: Residual | None, row: int) -> tuple[Array, Array, np.float32, Array]:
    """One of the contiguous ``rows``, its old residual, the decay, and the place of the new one; empty: there is none.

    Rows and old residual are for `vectors.load`, the new one is float32.
    """
    if residual is None:
        return bits_of(rows[row]), NOTHING, np.float32(0), NOTHING
    old = NOTHING if residual.old is None else bits_of(residual.old[row])
    return bits_of(rows[row]), old, np.float32(residual.decay), residual.new[row].numpy()
