"""Thin factors: products of large matrices with them, and bases of the space that their columns span."""

from __future__ import annotations

import torch
from torch import Tensor


def times(matrix: Tensor, factor: Tensor) -> Tensor:
    """``matrix`` ``[..., a, b]`` times ``factor`` ``[..., b, r]`` or ``[b, r]``: ``[..., a, r]``, r far below a and b.

    As ``(factor^T matrix^T)^T``: with few columns on the right side MKL takes 2 to 20 times as long, the longest where
    ``matrix`` is itself a transposed view. Nothing of ``matrix`` is copied.
    """
    if matrix.dim() > factor.dim():
        factor = factor.expand(*matrix.shape[:-2], -1, -1)
    return torch.matmul(factor.mT, matrix.mT).mT


def stacked(first: Tensor, second: Tensor) -> Tensor:
    """``first`` ``[R, a, b]`` times ``second`` ``[R, b, c]``: ``[R, a, c]``, rounded as R single products are."""
    if _are_few(first, second):
        return torch.stack([a @ b for a, b in zip(first, second, strict=True)])
    return torch.bmm(first, second)


FEW = 400  # multiplications: below, torch multiplies stacks by another kernel, which rounds otherwise


def each_product(first: Tensor, second: Tensor, out: Tensor) -> None:
    """Write ``first`` ``[R, a, b]`` times ``second`` ``[R, b, c]`` to ``out``, rounded as R single products are."""
    if _are_few(first, second):
        for a, b, product in zip(first, second, out, strict=True):
            torch.mm(a, b, out=product)
    else:
        torch.bmm(first, second, out=out)


def subtract_each_product(out: Tensor, first: Tensor, second: Tensor) -> None:
    """Subtract ``first`` times ``second`` from ``out``, as `each_product` would write it."""
    if _are_few(first, second):
        for a, b, product in zip(first, second, out, strict=True):
            product.addmm_(a, b, alpha=-1)
    else:
        out.baddbmm_(first, second, alpha=-1)


def _are_few(first: Tensor, second: Tensor) -> bool:
    return first.shape[-2] * first.shape[-1] * second.shape[-1] < FEW


def orthonormal(factor: Tensor) -> Tensor:
    """An orthonormal basis of the span of a ``factor``'s columns, or of those of each one in a stack ``[..., a, r]``.

    Householder; columns that depend on others get any direction.
    """
    basis: Tensor = torch.linalg.qr(factor / peak_of(factor)).Q
    return basis


def peak_of(factor: Tensor) -> Tensor:
    """The largest magnitude in each factor ``[..., a, r]``, 1 where all is zero: ``[..., 1, 1]``."""
    if factor.numel() == 0:
        return factor.new_ones(())
    peak = factor.abs().amax((-2, -1), keepdim=True)
    return torch.where(peak > 0, peak, 1)
