"""Changes of floats in units in the last place: the definition in torch operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comm_compress.kernels.tools.scratch import Scratch, fresh

DIRECT = 16  # smaller z are symbols themselves
EXPONENT = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10}  # where the exponent's bits begin
WIDTHS = {4: torch.int32, 2: torch.int16}


def exponent_counts(values: Tensor) -> Tensor:
    return torch.bincount(_exponents(values), minlength=256)


def by_exponent(values: Tensor, table: Tensor, out: Tensor) -> Tensor:
    return out.copy_(table[_exponents(values).long()])


def _exponents(values: Tensor) -> Tensor:
    bits = values.view(WIDTHS[values.itemsize]).int()
    width = 8 * values.itemsize - 1 - EXPONENT[values.dtype]
    return ((bits >> EXPONENT[values.dtype]) & ((1 << width) - 1)).to(torch.uint8)


def difference(old: Tensor, new: Tensor, scratch: Scratch = fresh) -> tuple[Tensor, Tensor]:
    places = 32 - 8 * old.itemsize
    difference = ((_ordered(new) - _ordered(old)) << places) >> places  # wraps as int32 does
    z = ((difference << 1) ^ (difference >> 31)).long() & ((1 << 8 * old.itemsize) - 1)
    bits = torch.frexp(z.double()).exponent.long()
    raw = (bits - 4).clamp(min=0)
    symbols = torch.where(z < DIRECT, z, DIRECT + 8 * (bits - 5) + ((z >> raw) & 7))
    return symbols.to(torch.uint8), _pack(z & ((1 << raw) - 1), raw)


def apply(values: Tensor, symbols: Tensor, raw_bits: Tensor) -> Tensor:
    s = symbols.long()
    bits = (s - DIRECT) // 8 + 5
    raw = torch.where(s < DIRECT, 0, bits - 4)
    z = torch.where(s < DIRECT, s, ((8 | ((s - DIRECT) & 7)) << raw) | _unpack(raw_bits, raw))
    ordered = _ordered(values).long() + ((z >> 1) ^ -(z & 1))
    places = 64 - 8 * values.itemsize
    wrapped = ((ordered << places) >> places).to(WIDTHS[values.itemsize])
    return values.copy_(_fold(wrapped).view(values.dtype))


def _ordered(values: Tensor) -> Tensor:
    """int32 ``[n]``, in the order of the floats."""
    return _fold(values.view(WIDTHS[values.itemsize])).int()


def _fold(bits: Tensor) -> Tensor:
    return bits ^ ((bits >> (8 * bits.itemsize - 1)) & torch.iinfo(bits.dtype).max)


def _pack(values: Tensor, lengths: Tensor) -> Tensor:
    """The low ``lengths[i]`` bits of each int64 value, one after the other."""
    owner, place = _places(lengths)
    stream = F.pad((values[owner] >> place) & 1, (0, -owner.numel() % 8)).view(-1, 8)
    return (stream << torch.arange(8, device=values.device)).sum(-1).to(torch.uint8)


def _unpack(packed: Tensor, lengths: Tensor) -> Tensor:
    owner, place = _places(lengths)
    stream = ((packed.long().unsqueeze(-1) >> torch.arange(8, device=packed.device)) & 1).flatten()
    return torch.zeros_like(lengths).index_add_(0, owner, stream[: owner.numel()] << place)


def _places(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """For every bit of the stream, the number of its element and its place in that element."""
    owner = torch.repeat_interleave(lengths)
    starts = lengths.cumsum(0) - lengths
    return owner, torch.arange(owner.numel(), device=lengths.device) - starts[owner]
