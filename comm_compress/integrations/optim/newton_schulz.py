"""Newton-Schulz: the nearest matrix with orthonormal rows or columns, approximately, by products alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's: singular values end between about 0.7 and 1.2
STEPS = 5
RMS = 0.2
"""Of AdamW's updates, about: what arXiv 2502.16982 gives every matrix's update, so that both have one rate."""
_EPS = 1e-7


def matched(shape: Sequence[int]) -> float:
    """By what to multiply an orthogonal matrix of ``shape`` so that its root mean square is that of AdamW's updates."""
    return RMS * math.sqrt(max(shape))


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return what Muon makes of an update ``[A, B]`` of any float dtype: U S' V^T for U S V^T, bfloat16 ``[A, B]``.

    Five steps of a quintic polynomial whose coefficients bring singular values near 1 and not exactly to it (Jordan
    2024, https://kellerjordan.github.io/posts/muon). The operations are those of `torch.optim.Muon` in their order, in
    bfloat16, so that the results are the same bits. ``matrix`` is not written to.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.bfloat16()
    x = x.T if is_tall else x
    x = x / x.norm().clamp(min=_EPS)
    for _ in range(STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
