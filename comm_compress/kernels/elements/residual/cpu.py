"""Error feedback inside CPU kernels: the target is in registers only, and what the code loses is written at once.

x = load_target(rows, old, decay, i, end)
prefetch_target(rows, old, i + ahead)
...
if new.size:
    stream(new, i, end, x - decoded)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.threads import over_blocks
from comm_compress.kernels.tools.vectors.llvm import array_size, intrinsic, load_lanes
from comm_compress.kernels.tools.vectors.nontemporal import FAR, fence, prefetch, stream
from comm_compress.kernels.tools.vectors.vectors import FLOATS, LANES, bits_of, splat, store, widened

NOTHING: Array = np.empty(0, np.float32)
FEW = 1 << 16  # elements that are float32 in a few microseconds


def few_as_float32(rows: Tensor, residual: Residual | None = None) -> tuple[Tensor, Residual | None]:
    """Return ``rows`` and ``residual`` with all numbers as float32 where there are fewer than `FEW`, which is exact.

    A kernel is compiled for each dtype of rows and of old residuals, up to a second each, and every process reads it
    from the disk. It is worth that where a pass over memory less is: for many numbers.
    """
    if rows.numel() >= FEW:
        return rows, residual
    if residual is not None and residual.old is not None:
        residual = residual._replace(old=residual.old.float())
    return rows.float(), residual


def target_arrays(rows: Tensor, residual: Residual | None, row: int) -> tuple[Array, Array, np.float32, Array]:
    """One of the contiguous ``rows``, its old residual, the decay, and the place of the new one; empty: there is none.

    Rows and old residual are for `vectors.load`, the new one is float32.
    """
    if residual is None:
        return bits_of(rows[row]), NOTHING, np.float32(0), NOTHING
    old = NOTHING if residual.old is None else bits_of(residual.old[row])
    return bits_of(rows[row]), old, np.float32(residual.decay), residual.new[row].numpy()


def write_target(rows: Tensor, residual: Residual) -> Tensor:
    if residual.old is None:
        return residual.target(rows)
    rows, vectors = rows.contiguous(), -(-rows.shape[1] // LANES)
    for row in range(rows.shape[0]):
        over_blocks(_add, vectors, LANES, *target_arrays(rows, residual, row), residual.new.numel() >= FAR)
    return residual.new


@intrinsic
def load_target(context: Any, rows: Any, old: Any, decay: Any, i: Any, end: Any) -> Any:
    """`vectors.load` of ``rows``, and of ``old`` times the floats ``decay`` unless it is empty.

    Rounded twice, as `Residual.target` is.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, old, decay, i, end = arguments
        kind, old_kind = signature.args[:2]
        x = widened(builder, kind.dtype, load_lanes(context, builder, kind, rows, i, end, LANES))
        alone = builder.block
        with builder.if_then(_holds(context, builder, old_kind, old)):
            left = widened(builder, old_kind.dtype, load_lanes(context, builder, old_kind, old, i, end, LANES))
            both, added = builder.fadd(x, builder.fmul(decay, left)), builder.block
        target = builder.phi(x.type)
        target.add_incoming(x, alone)
        target.add_incoming(both, added)
        return target

    return FLOATS(rows, old, FLOATS, types.intp, types.intp), build


@intrinsic
def prefetch_target(context: Any, rows: Any, old: Any, i: Any) -> Any:
    """What `load_target` will read is asked for early."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, old, i = arguments
        kind, old_kind = signature.args[:2]
        prefetch(context, builder, kind, rows, i)
        with builder.if_then(_holds(context, builder, old_kind, old)):
            prefetch(context, builder, old_kind, old, i)
        return context.get_dummy_value()

    return types.void(rows, old, types.intp), build


def _holds(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    size = array_size(context, builder, kind, array)
    return builder.icmp_signed("!=", size, size.type(0))


@compiled
def _add(first: int, last: int, rows: Array, old: Array, decay: np.float32, new: Array, far: bool) -> None:
    share, n = splat(decay), rows.size
    for i in range(first * LANES, min(last * LANES, n), LANES):
        target = load_target(rows, old, share, i, n)
        if far:
            stream(new, i, n, target)
        else:
            store(new, i, n, target)
    fence()
