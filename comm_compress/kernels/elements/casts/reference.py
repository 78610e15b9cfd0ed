"""Narrower floats, whole numbers in a byte, and sums of rows of them: the definition in torch operations."""

from __future__ import annotations

from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual


def cast_with_feedback(rows: Tensor, residual: Residual, out: Tensor) -> None:
    target = residual.target(rows)
    out.copy_(target)
    target.sub_(out)


def round_to_bytes(rows: Tensor, factor: Tensor, codes: Tensor) -> None:
    codes.copy_((rows.float() * factor).nan_to_num_(0).round_())


def scale_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    out.copy_(codes).mul_(scale)


def subtract_bytes(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    out.sub_(codes * scale)


def sum_rows(rows: Tensor, out: Tensor) -> None:
    out.zero_()
    for row in rows:
        out += row
