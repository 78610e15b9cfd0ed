"""DRIVE: signs of a randomly rotated row, and one scale. Vargaftik et al. 2021, arXiv:2105.08339."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import comm_compress as cc


@dataclass(frozen=True)
class DriveConfig:
    """``block_size``: elements that are rotated together and have a scale of their own, a power of two."""

    block_size: int = 1024

    def __post_init__(self) -> None:
        is_power = self.block_size > 0 and self.block_size & (self.block_size - 1) == 0
        cc.require(is_power and self.block_size >= 8, "block_size", self.block_size, "a power of two, 8 or more")


@cc.register("drive", DriveConfig, error_feedback=True)
class Drive(cc.Codec):
    """One bit an element: the sign after a Hadamard transform of the elements with random signs.

    The scale is |x|_1 / d of the rotated block, which has the least error. The random signs follow from a 4-byte seed
    that travels with the row.

    Source: DRIVE: one-bit distributed mean estimation, arXiv:2105.08339
    """

    traits = cc.Traits()

    def __init__(self, config: DriveConfig) -> None:
        self.block = config.block_size

    def layout(self, n: int, dtype: torch.dtype) -> cc.Layout:
        blocks = -(-n // self.block)
        return cc.Layout(
            cc.Field("scales", torch.float32, blocks, "metadata"),
            cc.Field("seed", torch.int32, 1, "metadata"),
            cc.Field("bits", torch.uint8, blocks * self.block // 8, "values"),
        )

    def encode(self, rows: Tensor, state: cc.State) -> cc.Encoded:
        out = state.message(rows, self.layout(rows.shape[1], rows.dtype))
        key = state.key("drive")
        out["seed"].fill_(key.low & 0x7FFFFFFF)
        padded = torch.nn.functional.pad(rows.float(), (0, -rows.shape[1] % self.block))
        blocks = padded.view(len(rows), -1, self.block)
        rotated = _hadamard(blocks * _signs(key.low & 0x7FFFFFFF, self.block))
        out["scales"].copy_(rotated.abs().mean(2))
        bits = (rotated < 0).to(torch.uint8).view(len(rows), -1, 8)
        out["bits"].copy_((bits << torch.arange(8, dtype=torch.uint8)).sum(2, dtype=torch.uint8))
        return out

    def decode(self, encoded: cc.Encoded) -> Tensor:
        rows = []
        for r in range(encoded.num_rows):
            bits = encoded["bits"][r].unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1
            blocks = (1.0 - 2.0 * bits.float()).view(-1, self.block) * encoded["scales"][r].unsqueeze(1)
            back = _hadamard(blocks) * _signs(int(encoded["seed"][r, 0]), self.block)
            rows.append(back.flatten()[: encoded.n])
        return torch.stack(rows)


def _signs(seed: int, size: int) -> Tensor:
    """Plus and minus one, a function of the seed alone."""
    return torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed)).float() * 2 - 1


def _hadamard(blocks: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of the last dimension."""
    size, shape, half = blocks.shape[-1], blocks.shape, 1
    if blocks.numel() == 0:
        return blocks
    while half < size:
        pairs = blocks.reshape(*shape[:-1], -1, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        blocks = torch.stack((a + b, a - b), -2).reshape(shape)
        half *= 2
    return blocks / size**0.5
