"""Block codes (`block_code.BlockCode`): the definition in torch operations.

It has four parts, each of which the fused kernels repeat to the bit: the size of a block, its scale, the rounding of
its elements, and the packing of codes into bytes (`packing.bits`, `packing.trits`).
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comm_compress.kernels.elements.random.reference import as_fractions, noise_bits
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.packing.bits import reference as bits_reference
from comm_compress.kernels.packing.trits import reference as trits_reference
from comm_compress.kernels.quantisers.blocks.block_code import BlockCode

TINY, HUGE = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
SHORT_HUGE = torch.finfo(torch.bfloat16).max
ROTATED = 32  # elements that one Hadamard rotation mixes
LANES, TILE = 32, 1024  # in which order sums are taken
FLOATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def encode(
    rows: Tensor,
    code: BlockCode,
    key: tuple[int, int] | None,
    codes: Tensor,
    scales: Tensor,
    residual: Residual | None = None,
) -> None:
    n = rows.shape[1]
    target = rows.float() if residual is None else residual.target(rows)
    x = in_blocks(rotated(target) if code.rotate else target, code.block(n))
    exact = block_scales(x, n, code)
    scales.copy_(exact)
    usable = (exact > 0).unsqueeze(-1)  # neither 0 nor NaN
    x = torch.where(usable, x, 0)
    inverse = torch.where(usable, 1 / exact.unsqueeze(-1), 0)
    packed(_rounded(x, inverse, n, code, key), code, codes)
    if residual is not None:
        target.sub_(_decoded(codes, scales, code, n))


def encode_difference(
    a: Tensor, b: Tensor, code: BlockCode, key: tuple[int, int] | None, codes: Tensor, scales: Tensor
) -> bool:
    encode((a.float() - b.float()).unsqueeze(0), code, key, codes, scales)
    return bool(torch.isfinite(scales).all())


def decode(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    out.copy_(_decoded(codes, scales, code, out.shape[1]))


def _decoded(codes: Tensor, scales: Tensor, code: BlockCode, n: int) -> Tensor:
    values = in_blocks(unpacked(codes, code, n), code.block(n)) * scales.unsqueeze(-1)
    rows = values.flatten(1)[:, :n]
    return rotated(rows) if code.rotate else rows


def decode_sum(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    out.zero_()
    plain = code._replace(rotate=False)
    for row in range(codes.shape[0]):
        out += _decoded(codes[row : row + 1], scales[row : row + 1], plain, out.numel())[0]
    if code.rotate:
        out.copy_(rotated(out.unsqueeze(0))[0])


def decode_add(codes: Tensor, scales: Tensor, code: BlockCode, out: Tensor) -> None:
    decoded = torch.empty_like(out, dtype=torch.float32)
    decode(codes, scales, code, decoded.unsqueeze(0))
    out += decoded


def in_blocks(rows: Tensor, block_size: int) -> Tensor:
    """``[R, n]`` as float32 ``[R, ceil(n / block_size), block_size]``, zero-padded."""
    n = rows.shape[1]
    count = math.ceil(n / block_size)
    return F.pad(rows.float(), (0, count * block_size - n)).view(rows.shape[0], count, block_size)


def block_lengths(n: int, block_size: int, device: torch.device) -> Tensor:
    """float64 ``[blocks]``: how many elements each block of a row really has (the last may be short)."""
    blocks = math.ceil(n / block_size)
    lengths = torch.full((blocks,), block_size, dtype=torch.float64, device=device)
    lengths[-1:] = n - block_size * (blocks - 1)
    return lengths


def block_scales(x: Tensor, n: int, code: BlockCode) -> Tensor:
    """Float32 ``[R, blocks]`` scales of blocks ``x`` ``[R, blocks, block]`` that hold rows of ``n``."""
    lengths = block_lengths(n, x.shape[2], x.device)
    if code.size == "mean":
        sizes = lane_sums(x.abs()) / lengths
    elif code.size == "l2":
        sizes = square_root(lane_sums(x, squares=True))
    else:
        sizes = x.abs().amax(-1).double()
    if code.clip_sigmas:
        sigmas = square_root(lane_sums(x, squares=True) / lengths)
        sizes = torch.minimum(sizes, code.clip_sigmas * sigmas)
    # by a tensor, because CUDA multiplies by the reciprocal when it divides by a number
    scales = (sizes / torch.full_like(sizes, code.levels)).clamp(max=SHORT_HUGE if code.short_scales else HUGE).float()
    if code.short_scales:
        scales = scales.bfloat16().float()
    return torch.where(torch.isfinite(sizes), torch.where(scales >= TINY, scales, 0), torch.nan)


def lane_sums(x: Tensor, squares: bool = False) -> Tensor:
    """float64 ``[...]``: sums over the last dimension of ``x`` (or of its squares), in an order that suits vectors.

    Tiles of 1024 elements; in each, element i is added to lane i mod 32, in ascending order; lanes are added in
    neighbouring pairs until one is left; tiles are added in ascending order. So every bit is the same on every
    device. Float32 squares neither overflow nor vanish in float64.
    """
    padded = F.pad(x, (0, -x.shape[-1] % TILE)).double()
    if squares:
        padded.square_()
    steps = padded.view(*padded.shape[:-1], -1, TILE // LANES, LANES).unbind(-2)
    lanes = steps[0].clone()
    for step in steps[1:]:
        lanes += step
    while lanes.shape[-1] > 1:
        lanes = lanes[..., 0::2] + lanes[..., 1::2]
    tiles = lanes.squeeze(-1).unbind(-1)
    total: Tensor = tiles[0].clone()
    for tile in tiles[1:]:
        total += tile
    return total


def square_root(x: Tensor) -> Tensor:
    """Correctly rounded on every device: numpy's and CUDA's are, torch's on CPU is not always."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def rotated(rows: Tensor) -> Tensor:
    """Float32 ``[R, n]``: every 32 elements times the normalised 32-point Hadamard matrix, which is its own inverse.

    The elements after the last multiple of 32 stay as they are. Elements are multiplied by 32^-1/2 first, then
    added and subtracted over distances 1, 2, 4, 8, 16.
    """
    num_rows, n = rows.shape
    whole = n - n % ROTATED
    x = (rows[:, :whole].float() * ROTATED**-0.5).reshape(num_rows, -1)
    distance = 1
    while distance < ROTATED:
        a, b = x.view(num_rows, -1, 2, distance).unbind(2)
        x = torch.stack((a + b, a - b), 2).view(num_rows, -1)
        distance *= 2
    return torch.cat((x, rows[:, whole:].float()), 1)


def _rounded(x: Tensor, inverse: Tensor, n: int, code: BlockCode, key: tuple[int, int] | None) -> Tensor:
    """int8 ``[R, n]`` codes (fp8: their bits; 1 bit: 0 or 1) of blocks ``x``, zero where a block has no scale."""
    levels = code.levels
    if code.rounding in FLOATS:
        scaled = x * inverse
        if code.rounding == "e4m3":  # it has no infinity: what is too large torch 2.11 makes NaN, 2.13 the largest
            largest = torch.finfo(FLOATS["e4m3"]).max
            scaled.clamp_(-largest, largest)
        rounded = scaled.to(FLOATS[code.rounding]).view(torch.int8)
    elif code.rounding == "nearest":
        rounded = (x * inverse).round_().clamp_(-levels, levels)
    elif code.rounding == "sign":
        rounded = (x >= 0) & (inverse > 0)
    else:
        assert key is not None
        noise = in_blocks(as_fractions(noise_bits(key, x.shape[0], n, x.device)), x.shape[2])
        t = x * inverse * 0.5 + 0.5 if code.bits == 1 else x * inverse
        whole = t.floor()
        least = 0 if code.bits == 1 else -levels
        rounded = torch.where(inverse > 0, (whole + (noise < t - whole)).clamp_(least, levels), 0)
    return rounded.flatten(1)[:, :n].to(torch.int8)


def packed(codes: Tensor, code: BlockCode, out: Tensor) -> None:
    """int8 ``codes`` ``[R, n]`` (1 bit: 0 or 1) as the wire's bytes."""
    if code.bits is None:
        trits_reference.pack(codes, out)
    else:
        bits_reference.pack(codes, code.bits, out)


def unpacked(codes: Tensor, code: BlockCode, n: int) -> Tensor:
    """The numbers ``[R, n]`` that the wire's bytes stand for, integers or floats."""
    if code.bits is None:
        return trits_reference.unpack(codes, n)
    if code.rounding in FLOATS:
        return codes.view(FLOATS[code.rounding])
    unsigned = bits_reference.unpack(codes, code.bits, n, torch.uint8)
    if code.bits == 1:
        return unsigned.mul_(2).sub_(1).view(torch.int8)
    sign = 1 << (code.bits - 1)
    return unsigned.bitwise_xor_(sign).sub_(sign).view(torch.int8)
