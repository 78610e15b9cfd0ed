"""Choosing coordinates by magnitude as Triton kernels: the reference's positions, without a sort.

First the k-th largest key is found: bit by bit, where one program holds a row, and otherwise by `torch.topk`, which
shares a long row among a whole GPU and needs the keys, 4 bytes each, in memory. Then the keys above it, and the first
of those equal to it, are written out in order, each tile's places beginning where the tiles before it end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.tools.scratch import Scratch, fresh
from comm_compress.kernels.tools.triton.launching import MAGNITUDE, launch, power_of_two, row_stride, target_at, warps

SHORT = 4096  # keys of a row that one program holds
TILE = 4096
ALL = 2**31 - 1


def largest(
    rows: Tensor, places: Tensor, values: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> None:
    (num_rows, n), k = rows.shape, places.shape[1]
    if k == 0:
        if residual is not None:
            residual.target(rows)
        return
    old, decay, new = residual or (None, 1.0, None)
    source = rows, old, new, row_stride(rows), row_stride(old), decay
    if n <= SHORT:
        padded = max(power_of_two(n), 128)
        launch(_largest_of_row, (num_rows,), *source, places, values, n, k, PADDED=padded, num_warps=warps(padded))
        return
    tiles, keys = triton.cdiv(n, TILE), torch.empty(num_rows, n, dtype=torch.int32, device=rows.device)
    launch(_keys, (tiles, num_rows), *source, keys, n, TILE=TILE, num_warps=8)
    thresholds = keys.topk(k, dim=1, sorted=False).values.amin(1)
    ends = _ends(keys.view(torch.float32), thresholds)
    left = k - ends[0, :, -1]  # of the keys on the threshold
    chosen_from = rows if new is None else new
    arguments = chosen_from, thresholds, left, ends, places, values, n, row_stride(chosen_from), k
    launch(_write, (tiles, num_rows), *arguments, TILE=TILE, num_warps=8)


def at_least(
    rows: Tensor, floors: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> list[tuple[Tensor, Tensor]]:
    """The CPU has to wait and read how many elements there are."""
    target = rows if residual is None else residual.target(rows)
    num_rows, n = rows.shape
    floors = floors.view(torch.int32)
    totals = [0] * num_rows
    if n:
        ends = _ends(target, floors)
        totals = ends[:, :, -1].sum(0).tolist()
    left = torch.full_like(floors, ALL)
    found = []
    for r, total in enumerate(totals):
        places = torch.empty(total, dtype=torch.int32, device=rows.device)
        values = torch.empty(total, dtype=torch.float32, device=rows.device)
        if total:
            row = target[r : r + 1], floors[r : r + 1], left, ends[:, r : r + 1].contiguous(), places, values
            launch(_write, (triton.cdiv(n, TILE), 1), *row, n, row_stride(target), 0, TILE=TILE, num_warps=8)
        found.append((places, values))
    return found


def _ends(rows: Tensor, thresholds: Tensor) -> Tensor:
    """int32 ``[2, R, tiles]``: how many keys lie above the row's threshold, and on it, up to the end of each tile."""
    num_rows, n = rows.shape
    tiles = triton.cdiv(n, TILE)
    counts = torch.empty(2, num_rows, tiles, dtype=torch.int32, device=rows.device)
    launch(_count, (tiles, num_rows), rows, thresholds, counts, n, row_stride(rows), TILE=TILE, num_warps=8)
    return counts.cumsum(2, dtype=torch.int32)


@triton.jit
def _bits_at(rows, old, new, decay, i, mask):
    """int32: the bits of the target, which is left in ``new`` unless that is None."""
    x = target_at(rows, old, decay, i, mask)
    if new is not None:
        tl.store(new + i, x, mask=mask)
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _keys(rows, old, new, stride, old_stride, decay, keys, n, TILE: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    rows += row * stride
    if old is not None:
        old += row * old_stride
    if new is not None:
        new += row * n
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(keys + row * n + i, _bits_at(rows, old, new, decay, i, i < n) & MAGNITUDE, mask=i < n)


@triton.jit
def _count(rows, thresholds, counts, n, stride, TILE: tl.constexpr):
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    i = tile * TILE + tl.arange(0, TILE)
    key = _bits_at(rows + row * stride, None, None, 1.0, i, i < n) & MAGNITUDE
    threshold = tl.load(thresholds + row)
    counts += row * tl.num_programs(0) + tile
    tl.store(counts, tl.sum(((i < n) & (key > threshold)).to(tl.int32), axis=0))
    counts += tl.num_programs(1).to(tl.int64) * tl.num_programs(0)
    tl.store(counts, tl.sum(((i < n) & (key == threshold)).to(tl.int32), axis=0))


@triton.jit
def _write(rows, thresholds, left, ends, places, values, n, stride, place_stride, TILE: tl.constexpr):
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    i = tile * TILE + tl.arange(0, TILE)
    bits = _bits_at(rows + row * stride, None, None, 1.0, i, i < n)
    ends += row * tl.num_programs(0) + tile - 1
    above = tl.load(ends, mask=tile > 0, other=0)
    equal = tl.load(ends + tl.num_programs(1).to(tl.int64) * tl.num_programs(0), mask=tile > 0, other=0)
    places += row * place_stride
    values += row * place_stride
    _write_chosen(bits, tl.load(thresholds + row), tl.load(left + row), above, equal, places, values, i, i < n)


@triton.jit
def _write_chosen(bits, threshold, left, above, equal, places, values, i, mask):
    """Places and values above the threshold, and the first ``left`` on it.

    ``above``, ``equal``: how many come before these. Each that is chosen has its place in the order of all: after those
    above before it, and after those on the threshold before it as far as they are chosen.
    """
    key = bits & MAGNITUDE
    greater = (mask & (key > threshold)).to(tl.int32)
    same = (mask & (key == threshold)).to(tl.int32)
    same_before = equal + tl.cumsum(same, 0) - same
    number = above + tl.cumsum(greater, 0) - greater + tl.minimum(same_before, left)
    chosen = (greater + tl.where(same_before < left, same, 0)) > 0
    tl.store(places + number, i, mask=chosen)
    tl.store(values + number, bits.to(tl.float32, bitcast=True), mask=chosen)


@triton.jit
def _largest_of_row(rows, old, new, stride, old_stride, decay, places, values, n, k, PADDED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)
    mask = i < n
    rows += row * stride
    if old is not None:
        old += row * old_stride
    if new is not None:
        new += row * n
    bits = _bits_at(rows, old, new, decay, i, mask)
    key = tl.where(mask, bits & MAGNITUDE, -1)
    threshold = tl.full((), 0, tl.int32)  # the largest number that k keys reach, from its highest bit on
    for bit in range(31):
        higher = threshold | (1 << (30 - bit))
        threshold = tl.where(tl.sum((key >= higher).to(tl.int32), axis=0) >= k, higher, threshold)
    left = k - tl.sum((key > threshold).to(tl.int32), axis=0)
    _write_chosen(bits, threshold, left, 0, 0, places + row * k, values + row * k, i, mask)
