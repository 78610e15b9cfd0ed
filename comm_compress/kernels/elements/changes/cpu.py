"""Whether anything has changed, as a numba kernel: most rows that have differ near their beginning."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from comm_compress.kernels.elements.changes import reference
from comm_compress.kernels.elements.finite.cpu import KNOWN
from comm_compress.kernels.tools.compiled import Array, compiled
from comm_compress.kernels.tools.vectors.vectors import bits_of

PIECE = 1 << 12  # elements after which it is seen whether any of them differed: vectors have no way out of a loop


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype not in KNOWN or not (a.is_contiguous() and b.is_contiguous()):
        return reference.same_bits(a, b)
    words = np.int32 if a.itemsize == 4 else np.int16
    return bool(_same(bits_of(a).reshape(-1).view(words), bits_of(b).reshape(-1).view(words)))


@compiled
def _same(a: Array, b: Array) -> bool:
    for start in range(0, a.size, PIECE):
        some, others = a[start : start + PIECE], b[start : start + PIECE]
        differ = some[0] ^ others[0]
        for i in range(some.size):
            differ |= some[i] ^ others[i]
        if differ:
            return False
    return True
