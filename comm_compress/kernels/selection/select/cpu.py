"""Choosing coordinates by magnitude as numba kernels, in about one pass over memory.

No sort and no partition of a row: a floor that somewhat more than k keys reach is guessed from a sample, or found
with a histogram of the keys' upper bits; what reaches it is collected in order; the exact k-th largest is found
among those. A row that is still to be added to a residual is compared with the floor as the sum is written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from comm_compress.kernels.elements.residual.cpu import write_target
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.tools.compiled import MAGNITUDE, Array, compiled, peak_bits
from comm_compress.kernels.tools.scratch import Scratch, fresh
from comm_compress.kernels.tools.threads import PART, over_blocks
from comm_compress.kernels.tools.vectors.nontemporal import fence, stream, to_line
from comm_compress.kernels.tools.vectors.unaligned import lowest_bit
from comm_compress.kernels.tools.vectors.vectors import LANES, load, reaching, splat

CPU = torch.device("cpu")
SAMPLE = 1 << 14  # keys that the floor of a longer row is guessed from
LONG = 4 * SAMPLE  # keys: a shorter row is not sampled
DIGIT = 20  # low bits of a key that the histogram does not look at
NEARBY = 1 << DIGIT  # an eighth of an octave: how far below its neighbour's k-th largest a short row's is sought
AT_ONCE = 2 * LANES  # keys that the bits of one mask tell about
SPARSE = 16  # of so many keys one is expected to reach a given floor; room is made anew for more


def largest(
    rows: Tensor, places: Tensor, values: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> None:
    (num_rows, n), k = rows.shape, places.shape[1]
    chosen = places.numpy(), values.view(torch.int32).numpy()
    if n < LONG or k == 0:
        keys = _addends(rows if residual is None else write_target(rows, residual), None).keys
        over_blocks(_short_rows, num_rows if k else 0, n, keys, k, *chosen)
        return
    addends, floors = _addends(rows, residual), np.empty(num_rows, np.int32)
    over_blocks(_guess, num_rows, n, *addends, k, floors)
    found = _collected(addends, floors, min(n, 3 * k + 1024), scratch)
    resolved = np.empty(num_rows, np.bool_)
    over_blocks(_take, num_rows, n, addends.keys, k, floors, *found, *chosen, resolved)
    for row in np.flatnonzero(~resolved).tolist():  # a guess too high, or far too low
        alone = addends.alone(row)
        floor, count = _histogram_floor(alone.keys, k)
        found = _collected(alone, floor, count, fresh)
        _take(0, 1, alone.keys, k, floor, *found, *(array[row : row + 1] for array in (*chosen, resolved)))


def at_least(
    rows: Tensor, floors: Tensor, residual: Residual | None = None, scratch: Scratch = fresh
) -> list[tuple[Tensor, Tensor]]:
    addends, keys, n = _addends(rows, residual), floors.view(torch.int32).numpy(), rows.shape[1]
    collected, chosen = _collected(addends, keys, n // SPARSE + AT_ONCE, scratch), []
    for row in range(rows.shape[0]):
        found = [array[row] for array in collected]
        if found[2].min() < 0:
            found = [array[0] for array in _collected(addends.alone(row), keys[row : row + 1], n, fresh)]
        places, values = (torch.from_numpy(array) for array in _joined(*found))
        chosen.append((places, values.view(torch.float32)))
    return chosen


class _Addends(NamedTuple):
    """What is chosen from: float32 ``target`` ``[R, n]``, whose bits are ``keys``. It is to be written as
    ``rows + decay * old``, unless ``old`` is ``[R, 0]``: then it is there."""

    rows: Array
    old: Array
    decay: np.float32
    target: Array
    keys: Array

    def alone(self, row: int) -> _Addends:
        """One row, now that the target is there."""
        target = self.target[row : row + 1]
        return _Addends(target, target[:, :0], self.decay, target, self.keys[row : row + 1])


def _addends(rows: Tensor, residual: Residual | None) -> _Addends:
    if residual is None or residual.old is None or residual.old.dtype != torch.float32:
        target = rows.contiguous() if residual is None else write_target(rows, residual)
        old, decay = target[:, :0], 1.0
    else:
        target, old, decay = residual.new, residual.old.contiguous(), residual.decay
    keys = target.view(torch.int32).numpy()
    return _Addends(rows.contiguous().numpy(), old.numpy(), np.float32(decay), target.numpy(), keys)


def _collected(addends: _Addends, floors: Array, limit: int, scratch: Scratch) -> tuple[Array, Array, Array]:
    """What reaches its row's floor: places and keys ``[R, parts, ...]``, and how many, -1 where above the limit.

    A row is shared out in parts, one for each thread, in order.
    """
    num_rows, n = addends.keys.shape
    shape = (num_rows, _parts(n), limit + 2 * AT_ONCE)
    places, found = (scratch(f"select {name}", shape, torch.int32, CPU).numpy() for name in ("places", "keys"))
    counts = np.empty(shape[:2], np.int64)
    over_blocks(_collect, num_rows * _parts(n), n // _parts(n), *addends, floors, places, found, counts)
    return places, found, counts


def _histogram_floor(keys: Array, k: int) -> tuple[Array, int]:
    """The largest multiple of 2^20 that at least k of ``keys`` ``[1, n]`` reach, or else 1; and how many do."""
    n = keys.shape[1]
    counts, zeros = np.zeros((_parts(n), 2, 1 << (31 - DIGIT)), np.int32), np.zeros(_parts(n), np.int64)
    over_blocks(_histogram, _parts(n), n // _parts(n), keys[0], counts, zeros)
    reached = counts.sum((0, 1))[::-1].cumsum()[::-1]
    reached[0] -= zeros.sum()
    digit = max(int(np.count_nonzero(reached >= k)) - 1, 0)
    return np.full(1, max(digit << DIGIT, 1), np.int32), int(reached[digit])


def _parts(n: int) -> int:
    return max(1, min(torch.get_num_threads(), n // PART))


@compiled
def _guess(
    first: int, last: int, rows: Array, old: Array, decay: np.float32, _: Array, keys: Array, k: int, floors: Array
) -> None:
    """A floor that somewhat more than k keys of the row reach, from one key of every so many; no zero reaches it."""
    stride = keys.shape[1] // SAMPLE
    expected = k / stride
    rank = min(int(expected + 4 * np.sqrt(expected) + 8), SAMPLE)
    sample = np.empty(SAMPLE, np.int32)
    for row in range(first, last):
        for i in range(SAMPLE):
            place = i * stride + ((i * 40503 & 0xFFFF) * stride >> 16)  # a fixed stride would meet the same columns
            value = rows[row, place]
            if old.shape[1]:
                value = value + decay * old[row, place]
            sample[i] = np.float32(value).view(np.int32)
        floors[row] = max(_kth(sample, rank), np.int32(1))


@compiled
def _collect(
    first: int,
    last: int,
    rows: Array,
    old: Array,
    decay: np.float32,
    target: Array,
    keys: Array,
    floors: Array,
    places: Array,
    found: Array,
    counts: Array,
) -> None:
    parts, n = counts.shape[1], keys.shape[1]
    for item in range(first, last):
        row, part = item // parts, item % parts
        start, stop = n * part // parts, n * (part + 1) // parts
        here = places[row, part], found[row, part]
        if old.shape[1]:
            count = _sum_part(rows[row], old[row], decay, target[row], start, stop, floors[row], *here)
        else:
            count = _part(keys[row], start, stop, floors[row], *here)
        counts[row, part] = count
    fence()


@compiled
def _both(first: np.uint32, second: np.uint32) -> np.uint64:
    return np.uint64(first) | np.uint64(second) << np.uint64(LANES)


@compiled
def _part(keys: Array, start: int, stop: int, floor: np.int32, places: Array, found: Array) -> int:
    """What reaches the floor from ``start`` to ``stop``, and how many: -1 where there is no room for all of them."""
    count, limit = 0, places.size - 2 * AT_ONCE
    whole = stop - (stop - start) % AT_ONCE
    for at in range(start, whole, AT_ONCE):
        mask = _both(reaching(load(keys, at, at + LANES), floor), reaching(load(keys, at + LANES, at + AT_ONCE), floor))
        while mask != 0:
            place = at + lowest_bit(mask)
            places[count], found[count] = place, keys[place]
            mask &= mask - np.uint64(1)
            count += 1
        if count > limit:
            return -1
    for place in range(whole, stop):
        places[count], found[count] = place, keys[place]
        count += (keys[place] & MAGNITUDE) >= floor
    return count if count <= limit else -1


@compiled
def _sum_part(
    rows: Array,
    old: Array,
    decay: np.float32,
    target: Array,
    start: int,
    stop: int,
    floor: np.int32,
    places: Array,
    found: Array,
) -> int:
    """`_part` of the target, which is written on the way, to its end in any case."""
    count, limit = 0, places.size - 2 * AT_ONCE
    line = min(stop, start + to_line(target, start))
    whole = stop - (stop - line) % AT_ONCE
    at, share = start, splat(decay)
    while at < stop:
        if line <= at < whole:
            middle, end = at + LANES, at + AT_ONCE
            x = load(rows, at, middle) + share * load(old, at, middle)
            y = load(rows, middle, end) + share * load(old, middle, end)
            stream(target, at, middle, x)
            stream(target, middle, end, y)
            mask, width = _both(reaching(x, floor), reaching(y, floor)), AT_ONCE
        else:
            target[at] = rows[at] + decay * old[at]
            mask, width = np.uint64((np.float32(target[at]).view(np.int32) & MAGNITUDE) >= floor), 1
        if count > limit:
            mask = np.uint64(0)
        while mask != 0:
            place = at + lowest_bit(mask)
            places[count] = place  # and the sum anew: what went to memory is far away
            found[count] = np.float32(rows[place] + decay * old[place]).view(np.int32)
            mask &= mask - np.uint64(1)
            count += 1
        at += width
    return count if count <= limit else -1


@compiled
def _take(
    first: int,
    last: int,
    keys: Array,
    k: int,
    floors: Array,
    places: Array,
    found: Array,
    counts: Array,
    chosen: Array,
    values: Array,
    resolved: Array,
) -> None:
    """The k largest of each row's collected keys, or of those and zeros; not resolved where that is not certain."""
    for row in range(first, last):
        resolved[row] = False
        if counts[row].min() >= 0:
            collected, kept = _joined(places[row], found[row], counts[row])
            if collected.size >= k:
                _take_largest(collected, kept, k, chosen[row], values[row])
                resolved[row] = True
            elif floors[row] == 1:
                _take_with_zeros(keys[row], collected, chosen[row], values[row])
                resolved[row] = True


@compiled
def _joined(places: Array, found: Array, counts: Array) -> tuple[Array, Array]:
    """The parts of a row behind one another, in their own memory."""
    all_places, all_found, size = places.reshape(places.size), found.reshape(found.size), counts[0]
    for part in range(1, counts.size):
        for i in range(counts[part]):
            all_places[size + i], all_found[size + i] = places[part, i], found[part, i]
        size += counts[part]
    return all_places[:size], all_found[:size]


@compiled
def _take_largest(places: Array, keys: Array, k: int, chosen: Array, values: Array) -> np.int32:
    """Write the k largest to ``chosen`` and ``values``; return the k-th largest magnitude."""
    threshold = _kth(keys, k)
    ties, count = k - _count(keys, np.int32(threshold + 1)), 0
    for i in range(keys.size):  # without a branch: which of them are taken is too irregular to predict
        if count == k:
            break
        key = keys[i] & MAGNITUDE
        tie = (key == threshold) & (ties > 0)
        chosen[count], values[count] = places[i], keys[i]
        count += (key > threshold) | tie
        ties -= tie
    return threshold


@compiled
def _take_with_zeros(row: Array, places: Array, chosen: Array, values: Array) -> None:
    """All that are not zero, and of the zeros as many of the first as are wanted."""
    zeros, i, place = chosen.size - places.size, 0, 0
    for count in range(chosen.size):
        if i < places.size and (zeros == 0 or places[i] == place):
            place = places[i]
            i += 1
        else:
            zeros -= 1
        chosen[count], values[count] = place, row[place]
        place += 1


@compiled
def _short_rows(first: int, last: int, keys: Array, k: int, places: Array, values: Array) -> None:
    """Row after row: the last one's k-th largest key tells where to look for the next one's."""
    n = keys.shape[1]
    collected, kept, floor = np.empty(n + 2 * AT_ONCE, np.int32), np.empty(n + 2 * AT_ONCE, np.int32), np.int32(0)
    for row in range(first, last):
        count = _part(keys[row], 0, n, floor, collected, kept)
        if count < k:
            count = _part(keys[row], 0, n, np.int32(0), collected, kept)
        threshold = _take_largest(collected[:count], kept[:count], k, places[row], values[row])
        floor = np.int32(max(int(threshold) - NEARBY, 0))


@compiled
def _histogram(first: int, last: int, keys: Array, counts: Array, zeros: Array) -> None:
    """How many keys have which upper bits, in two histograms: like neighbours need not wait for each other."""
    parts = counts.shape[0]
    for part in range(first, last):
        even, odd = counts[part, 0], counts[part, 1]
        start, stop = keys.size * part // parts, keys.size * (part + 1) // parts
        for i in range(start, stop - 1, 2):
            a, b = keys[i] & MAGNITUDE, keys[i + 1] & MAGNITUDE
            even[a >> DIGIT] += 1
            odd[b >> DIGIT] += 1
            zeros[part] += (a == 0) + (b == 0)
        if (stop - start) % 2:
            even[(keys[stop - 1] & MAGNITUDE) >> DIGIT] += 1
            zeros[part] += keys[stop - 1] & MAGNITUDE == 0


@compiled
def _kth(keys: Array, k: int) -> np.int32:
    """The k-th largest magnitude: the largest number that at least k of them reach, bit by bit.

    Beginning with the bits that not all keys share; once a number is found that exactly k reach, it is their least.
    """
    low, high = _least(keys, np.int32(0)), peak_bits(keys)
    bit, threshold = -1, high
    while threshold > low:  # to the bits that all have in common
        bit += 1
        threshold, low = np.int32(threshold >> 1), np.int32(low >> 1)
    threshold = np.int32(threshold << (bit + 1))
    while bit >= 0:
        higher = np.int32(threshold | np.int32(1 << bit))
        count = _count(keys, higher)
        if count == k:
            return _least(keys, higher)
        if count > k:
            threshold = higher
        bit -= 1
    return threshold


@compiled
def _least(keys: Array, floor: np.int32) -> np.int32:
    """The least magnitude among those that reach the floor."""
    least = MAGNITUDE
    for i in range(keys.size):
        key = np.int32(keys[i] & MAGNITUDE)
        least = min(least, key if key >= floor else MAGNITUDE)
    return least


@compiled
def _count(keys: Array, floor: np.int32) -> np.int32:
    count = np.int32(0)
    for i in range(keys.size):
        count += np.int32((keys[i] & MAGNITUDE) >= floor)
    return count
