"""Thin factors between their products: the definition in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.kernels.projections.factors.lines import Lines

LEAST, MOST = -126, 127  # exponents


def take(rows: Tensor, lines: Lines, index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    where = places(lines, index)
    values, num_rows = rows.new_empty(rows.shape[0], lines.num_values), rows.shape[0]
    first = line = element = value = 0
    for s in lines.shapes:
        value += s.r * s.long
        if s.whole:
            number, size = first + index[:, line : line + s.whole], s.whole * s.short
            taken = rows.gather(1, where[:, element : element + size]).view(num_rows, s.whole, s.short)
            values[:, value : value + size] = (taken * weights.gather(1, number)[:, :, None]).flatten(1)
            weights.scatter_(1, number, 0)
            line, element, value = line + s.whole, element + size, value + size
        first += s.long
    return values, where


def places(lines: Lines, index: Tensor) -> Tensor:
    found, line = [index.new_empty(index.shape[0], 0)], 0
    for s in lines.shapes:
        if s.whole:
            begin = s.start + index[:, line : line + s.whole, None] * s.line_apart
            found.append((begin + torch.arange(s.short, device=index.device) * s.apart).flatten(1))
            line += s.whole
    return torch.cat(found, 1)


def spread(values: Tensor, lines: Lines, index: Tensor, exponents: Tensor) -> Tensor:
    scales, spread, num_rows = torch.exp2(exponents.float()), torch.empty_like(values), values.shape[0]
    first = line = value = 0
    for s in lines.shapes:
        scale, left = scales[:, first : first + s.long], slice(value, value + s.r * s.long)
        spread[:, left] = (values[:, left].view(num_rows, s.r, s.long) * scale[:, None]).flatten(1)
        value += s.r * s.long
        if s.whole:
            whole = slice(value, value + s.whole * s.short)
            of_lines = scale.gather(1, index[:, line : line + s.whole])[:, :, None]
            spread[:, whole] = (values[:, whole].view(num_rows, s.whole, s.short) * of_lines).flatten(1)
            line, value = line + s.whole, value + s.whole * s.short
        first += s.long
    return spread


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
