"""Choosing coordinates by magnitude as Triton kernels: the reference's positions, without a sort.

The k-th largest key is found digit by digit from the top (11, 10 and 10 bits), counting the keys that share the digits
found so far; then the keys above it, and the first of those equal to it, are written out in order. A row that one
program holds takes one kernel. A longer one is read five times: three histograms, a count for each tile, and the
writing, each tile's places beginning where the tiles before it end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.triton_tools import launch, power_of_two, row_stride

SHORT = 4096  # keys of a row that one program holds
TILE = 4096
PROGRAMS = 1024  # that share the histogram of a row
DIGITS = ((20, 11), (10, 10), (0, 10))  # lowest bit and width, from the top
ALL = 2**31 - 1

MAGNITUDE = tl.constexpr(0x7FFFFFFF)


def largest(keys: Tensor, k: int) -> Tensor:
    """As `select_reference.largest`."""
    num_rows, n = keys.shape
    places = torch.empty(num_rows, k, dtype=torch.int32, device=keys.device)
    if k == 0:
        return places
    strides = row_stride(keys), k
    if n <= SHORT:
        padded = max(power_of_two(n), 128)
        launch(_largest_of_row, (num_rows,), keys, places, n, k, *strides, PADDED=padded, num_warps=padded // 512 or 1)
        return places
    thresholds = torch.zeros(num_rows, dtype=torch.int32, device=keys.device)
    left = torch.full_like(thresholds, k)
    tiles = triton.cdiv(n, TILE)
    counts = torch.zeros(len(DIGITS), num_rows, 1 << 11, dtype=torch.int32, device=keys.device)
    for (shift, width), count in zip(DIGITS, counts, strict=True):
        digit = {"SHIFT": shift, "WIDTH": width}
        grid = (min(tiles, PROGRAMS), num_rows)
        launch(_histogram, grid, keys, thresholds, count, n, tiles, strides[0], **digit, TILE=TILE, num_warps=8)
        launch(_next_digit, (num_rows,), count, thresholds, left, **digit)
    ends = _ends(keys, thresholds)
    launch(_write, (tiles, num_rows), keys, thresholds, left, ends, places, n, *strides, TILE=TILE, num_warps=8)
    return places


def at_least(keys: Tensor, floors: Tensor) -> list[Tensor]:
    """As `select_reference.at_least`; the numbers of places have to be read by the CPU."""
    n = keys.shape[1]
    if n == 0:
        return [torch.empty(0, dtype=torch.int32, device=keys.device) for _ in keys]
    ends = _ends(keys, floors)
    totals = ends[:, :, -1].sum(0).tolist()
    found = [torch.empty(total, dtype=torch.int32, device=keys.device) for total in totals]
    left = torch.full_like(floors, ALL)
    for r, places in enumerate(found):
        arguments = keys[r : r + 1], floors[r : r + 1], left, ends[:, r : r + 1].contiguous(), places
        launch(_write, (triton.cdiv(n, TILE), 1), *arguments, n, row_stride(keys), 0, TILE=TILE, num_warps=8)
    return found


def _ends(keys: Tensor, thresholds: Tensor) -> Tensor:
    """int32 ``[2, R, tiles]``: how many keys lie above the row's threshold, and on it, up to the end of each tile."""
    num_rows, n = keys.shape
    tiles = triton.cdiv(n, TILE)
    counts = torch.empty(2, num_rows, tiles, dtype=torch.int32, device=keys.device)
    launch(_count, (tiles, num_rows), keys, thresholds, counts, n, row_stride(keys), TILE=TILE, num_warps=8)
    return counts.cumsum(2, dtype=torch.int32)


@triton.jit
def _digit(counts, left, WIDTH: tl.constexpr):
    """The digit of the key that ``left`` keys reach, by the digits' ``counts``; how many of those share that digit."""
    reached = tl.cumsum(counts, 0, reverse=True)
    digit = tl.sum((reached >= left).to(tl.int32), axis=0) - 1
    above = tl.sum(tl.where(tl.arange(0, 1 << WIDTH) == digit, reached - counts, 0), axis=0)
    return digit, left - above


@triton.jit
def _histogram(
    keys, thresholds, counts, n, tiles, stride, SHIFT: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    keys += row * stride
    known = tl.load(thresholds + row) >> SHIFT + WIDTH
    total = tl.zeros([1 << WIDTH], tl.int32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        i = tile * TILE + tl.arange(0, TILE)
        key = tl.load(keys + i, mask=i < n, other=0) & MAGNITUDE
        mask = (i < n) & (key >> SHIFT + WIDTH == known)
        total += tl.histogram((key >> SHIFT) & ((1 << WIDTH) - 1), 1 << WIDTH, mask=mask)
    tl.atomic_add(counts + row * 2048 + tl.arange(0, 1 << WIDTH), total, mask=total > 0, sem="relaxed")


@triton.jit
def _next_digit(counts, thresholds, left, SHIFT: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    count = tl.load(counts + row.to(tl.int64) * 2048 + tl.arange(0, 1 << WIDTH))
    digit, fewer = _digit(count, tl.load(left + row), WIDTH)
    tl.store(thresholds + row, tl.load(thresholds + row) | (digit << SHIFT))
    tl.store(left + row, fewer)


@triton.jit
def _count(keys, thresholds, counts, n, stride, TILE: tl.constexpr):
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    i = tile * TILE + tl.arange(0, TILE)
    key = tl.load(keys + row * stride + i, mask=i < n, other=0) & MAGNITUDE
    threshold = tl.load(thresholds + row)
    counts += row * tl.num_programs(0) + tile
    tl.store(counts, tl.sum(((i < n) & (key > threshold)).to(tl.int32), axis=0))
    counts += tl.num_programs(1).to(tl.int64) * tl.num_programs(0)
    tl.store(counts, tl.sum(((i < n) & (key == threshold)).to(tl.int32), axis=0))


@triton.jit
def _write(keys, thresholds, left, ends, places, n, stride, place_stride, TILE: tl.constexpr):
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    i = tile * TILE + tl.arange(0, TILE)
    key = tl.load(keys + row * stride + i, mask=i < n, other=0) & MAGNITUDE
    ends += row * tl.num_programs(0) + tile - 1
    above = tl.load(ends, mask=tile > 0, other=0)
    equal = tl.load(ends + tl.num_programs(1).to(tl.int64) * tl.num_programs(0), mask=tile > 0, other=0)
    _write_chosen(
        key, tl.load(thresholds + row), tl.load(left + row), above, equal, places + row * place_stride, i, i < n
    )


@triton.jit
def _write_chosen(key, threshold, left, above, equal, places, i, mask):
    """The places of keys above the threshold, and of the first ``left`` equal to it.

    ``above``, ``equal``: how many come before these. Every key chosen has its place in the order of all: after those
    above before it, and after those equal before it as far as they are chosen.
    """
    greater = (mask & (key > threshold)).to(tl.int32)
    same = (mask & (key == threshold)).to(tl.int32)
    before = above + tl.cumsum(greater, 0) - greater
    same_before = equal + tl.cumsum(same, 0) - same
    chosen = (greater + tl.where(same_before < left, same, 0)) > 0
    tl.store(places + before + tl.minimum(same_before, left), i, mask=chosen)


@triton.jit
def _largest_of_row(keys, places, n, k, stride, place_stride, PADDED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)
    mask = i < n
    key = tl.load(keys + row * stride + i, mask=mask, other=0) & MAGNITUDE
    digit, left = _digit(tl.histogram(key >> 20, 2048, mask=mask), k, 11)
    threshold = digit << 20
    some = mask & (key >> 20 == threshold >> 20)
    digit, left = _digit(tl.histogram((key >> 10) & 1023, 1024, mask=some), left, 10)
    threshold |= digit << 10
    some = mask & (key >> 10 == threshold >> 10)
    digit, left = _digit(tl.histogram(key & 1023, 1024, mask=some), left, 10)
    threshold |= digit
    _write_chosen(key, threshold, left, 0, 0, places + row * place_stride, i, mask)
