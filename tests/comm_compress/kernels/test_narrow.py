"""Kernels that read narrow rows, or narrow residuals, give what they give for the same numbers as float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from comm_compress.kernels import Residual
from comm_compress.kernels.elements.casts import cpu as casts
from comm_compress.kernels.elements.residual.cpu import FEW, few_as_float32
from comm_compress.kernels.quantisers.onebit import cpu as onebit
from comm_compress.kernels.quantisers.powers import cpu as powers
from comm_compress.kernels.quantisers.powers.reference import POWER_BLOCK
from comm_compress.kernels.quantisers.votes import cpu as votes

KEY = (5, 6)
GROUP = 1000
Encoder = Callable[[Tensor, Residual], tuple[Tensor, ...]]


def as_powers(rows: Tensor, residual: Residual) -> tuple[Tensor, ...]:
    exponents, signs = room(rows, 1), room(rows, 8)
    powers.encode(rows, KEY, exponents, signs, residual)
    return exponents, signs


def as_windows_of_powers(rows: Tensor, residual: Residual) -> tuple[Tensor, ...]:
    lowest, codes = room(rows, POWER_BLOCK), room(rows, 1)
    powers.encode_window(rows, KEY, lowest, codes, residual)
    return lowest, codes


def as_means(rows: Tensor, residual: Residual) -> tuple[Tensor, ...]:
    above, below, bits = room(rows, GROUP).float(), room(rows, GROUP).float(), room(rows, 8)
    onebit.encode(rows, GROUP, above, below, bits, residual)
    return above, below, bits


def as_votes(rows: Tensor, _: Residual) -> tuple[Tensor, ...]:
    marks, bits = room(rows, GROUP), room(rows, 8)
    votes.encode(rows, GROUP, KEY, marks, bits)
    return marks, bits


def as_bfloat16(rows: Tensor, residual: Residual) -> tuple[Tensor, ...]:
    out = torch.empty(rows.shape, dtype=torch.bfloat16)
    casts.cast_with_feedback(rows, residual, out)
    return (out,)


def as_bytes(rows: Tensor, _: Residual) -> tuple[Tensor, ...]:
    codes = torch.empty(rows.shape, dtype=torch.int8)
    casts.round_to_bytes(rows, torch.tensor(20.0), codes)
    return (codes,)


def room(rows: Tensor, elements: int) -> Tensor:
    """For one byte for so many elements of each row."""
    return torch.zeros(rows.shape[0], -(-rows.shape[1] // elements), dtype=torch.uint8)


@pytest.mark.parametrize("encoder", [as_powers, as_windows_of_powers, as_means, as_votes, as_bfloat16, as_bytes])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)], ids=str)
@pytest.mark.parametrize("n", [77, FEW // 2 + 13])
def test_of_float32_and_of_narrow_numbers_is_the_same(
    encoder: Encoder, dtypes: tuple[torch.dtype, torch.dtype], n: int
) -> None:
    generator = torch.Generator().manual_seed(n)
    rows, old = (torch.randn(2, n, generator=generator).to(dtype) for dtype in dtypes)
    rows[0, 5], rows[1, :40] = 0, 1e-6
    narrow, wide = (Residual(waits, 0.9, torch.empty(2, n)) for waits in (old, old.float()))
    for ours, theirs in zip(encoder(rows, narrow), encoder(rows.float(), wide), strict=True):
        assert torch.equal(ours, theirs)
    if encoder not in (as_votes, as_bytes):
        assert torch.equal(narrow.new, wide.new)


def test_only_few_are_made_float32() -> None:
    for number, dtype in ((FEW - 1, torch.float32), (FEW, torch.bfloat16)):
        narrow = torch.ones(1, number, dtype=torch.bfloat16)
        rows, residual = few_as_float32(narrow, Residual(narrow, 1.0, torch.empty(1, number)))
        assert residual is not None
        assert residual.old is not None
        assert (rows.dtype, residual.old.dtype) == (dtype, dtype)
        assert few_as_float32(narrow, None)[1] is None
