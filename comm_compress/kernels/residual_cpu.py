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

from comm_compress.kernels.numba_tools import Array, compiled
from comm_compress.kernels.residual import Residual
from comm_compress.kernels.stream_cpu import FAR, fence, stream
from comm_compress.kernels.threads import over_blocks
from comm_compress.kernels.vectors import LANES, bits_of, load, splat, store

NOTHING: Array = np.empty(0, np.float32)


def target_arrays(rows: Tensor, residual: Residual | None, row: int) -> tuple[Array, Array, np.float32, Array]:
    """One of the contiguous ``rows``, its old residual, the decay, and the place of the new one; empty: there is none.

    Rows and old residual are for `vectors.load`, the new one is float32.
    """
    if residual is None:
        return bits_of(rows[row]), NOTHING, np.float32(0), NOTHING
    old = NOTHING if residual.old is None else bits_of(residual.old[row])
    return bits_of(rows[row]), old, np.float32(residual.decay), residual.new[row].numpy()


def residual_target(rows: Tensor, residual: Residual) -> Tensor:
    """As `residual_reference.residual_target`, for CPU rows."""
    if residual.old is None:
        return residual.target(rows)
    rows, vectors = rows.contiguous(), -(-rows.shape[1] // LANES)
    for row in range(rows.shape[0]):
        over_blocks(_add, vectors, LANES, *target_arrays(rows, residual, row), residual.new.numel() >= FAR)
    return residual.new


@compiled
def _add(first: int, last: int, rows: Array, old: Array, decay: np.float32, new: Array, far: bool) -> None:
    share, n = splat(decay), rows.size
    for i in range(first * LANES, min(last * LANES, n), LANES):
        target = load(rows, i, n) + share * load(old, i, n)
        if far:
            stream(new, i, n, target)
        else:
            store(new, i, n, target)
    fence()
