"""Thin factors between their products: the definition in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.common.factors import Lines, elements

LEAST, MOST = -126, 127  # exponents


def take(rows: Tensor, lines: Lines, index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    places, among_all = elements(lines, index), index + lines.first_lines
    whole = rows.gather(1, places) * weights.gather(1, among_all).index_select(1, lines.of_whole)
    weights.scatter_(1, among_all, 0)
    values = rows.new_empty(rows.shape[0], lines.num_values)
    return values.index_copy_(1, lines.in_values, whole), places


def spread(values: Tensor, lines: Lines, index: Tensor, exponents: Tensor) -> Tensor:
    scales, spread = torch.exp2(exponents.float()), torch.empty_like(values)
    first = value = 0
    for s in lines.shapes:
        scale, left = scales[:, None, first : first + s.long], slice(value, value + s.r * s.long)
        spread[:, left] = (values[:, left].view(-1, s.r, s.long) * scale).flatten(1)
        first, value = first + s.long, value + s.r * s.long + s.whole * s.short
    of_lines = scales.gather(1, index + lines.first_lines).index_select(1, lines.of_whole)
    whole = values.index_select(1, lines.in_values) * of_lines
    return spread.index_copy_(1, lines.in_values, whole)


def powers_of(lengths: Tensor) -> tuple[Tensor, Tensor]:
    whole = torch.where(torch.isfinite(lengths), lengths, 0)
    exponents = torch.frexp(whole).exponent.clamp_(LEAST, MOST).to(torch.int8)
    return exponents, torch.exp2(-exponents.float())


def weigh(factors: Tensor, weights: Tensor) -> None:
    scale(factors.mul_(weights[:, None]))
    factors.mul_(weights[:, None])


def scale(factors: Tensor) -> None:
    if factors.numel():
        peak = factors.abs().amax((-2, -1), keepdim=True)
        factors.div_(torch.where(peak > 0, peak, 1))
