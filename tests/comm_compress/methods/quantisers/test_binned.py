"""`binned` against its definition, and against the bins of SparseLoCo's public code on the values that top-k keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from comm_compress.core.state import State
from comm_compress.methods.quantisers.binned import Binned, BinnedConfig


def arrived(rows: Tensor, **settings: Any) -> Tensor:
    method, state = Binned(BinnedConfig(**settings)), State()
    state.begin()
    return method.decode(method.encode(rows, state))


def by_hand(block: Tensor, num_bits: int, range_sigmas: float, centre: str) -> Tensor:
    """What a block arrives as, in float64."""
    x, bins = block.double(), 2**num_bits
    steps = (x - x.mean()) / (range_sigmas * x.std(correction=0) / bins)
    codes = ((steps.floor() if centre == "edge" else steps.round()) + bins // 2).clamp(0, bins - 1)
    out = torch.zeros_like(x)
    for code in range(bins):
        if (codes == code).any():
            out[codes == code] = x[codes == code].mean()
    return out.float()


def largest(data: Tensor) -> Tensor:
    """The 64 largest of every 4096, in their order: ``[1, n / 64]``."""
    chunks = data.view(-1, 4096)
    kept = chunks.abs().topk(64, dim=1).indices.sort(1).values
    return chunks.gather(1, kept).view(1, -1)


@pytest.mark.parametrize("centre", ["edge", "bin"])
@pytest.mark.parametrize(("num_bits", "n"), [(1, 64), (2, 130), (2, 64), (4, 200)])
def test_each_bin_arrives_as_its_mean(centre: str, num_bits: int, n: int) -> None:
    rows = torch.randn(3, n, generator=torch.Generator().manual_seed(n)) * 1e-3 + 2e-4
    found = arrived(rows, num_bits=num_bits, block_size=64, range_sigmas=3.0, centre=centre)
    for row, got in zip(rows, found, strict=True):
        expected = torch.cat([by_hand(block, num_bits, 3.0, centre) for block in row.split(64)])
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=4e-9)  # a 2^-20th of the largest


def test_what_has_no_spread_arrives_as_it_is() -> None:
    rows = torch.tensor([[0.25] * 8 + [0.0] * 8 + [-3.0, 3.0] * 4, [1e-42] * 8 + [torch.inf] + [0.0] * 7 + [1.0] * 8])
    found = arrived(rows, block_size=8)
    assert torch.equal(found[0], rows[0])
    assert torch.equal(found[1, :8], torch.zeros(8)), "too small for float32's normal numbers"
    assert found[1, 8:16].isnan().all(), "the whole block"
    assert torch.equal(found[1, 16:], rows[1, 16:])


def test_kept_values_lose_less_than_half_of_what_the_public_codes_bins_lose() -> None:
    torch.manual_seed(0)
    for data in (torch.randn(1 << 17), torch.distributions.Laplace(0.0, 1.0).sample((1 << 17,))):
        values = largest(data)
        ours, theirs = (
            float((arrived(values, **settings) - values).square().sum() / values.square().sum())
            for settings in ({}, {"range_sigmas": 6.0, "centre": "bin"})
        )
        assert ours < 0.5 * theirs
        assert ours < 0.02
