"""Parameters that move at random, and replicas that follow them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core.segments import segments_of
from comm_compress.drive import simulate

SHAPE = (64, 120)
N = 64 * 120
EIGHTH = 2**0.125  # scales are quarters of an octave


def parameters(seed: int = 0) -> Tensor:
    """A matrix whose rows differ in size by powers of ten."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SHAPE, generator=generator) * 10 ** torch.randn(64, 1, generator=generator)


def walk(
    method: cc.Compressor,
    start: Tensor,
    update: float,
    momentum: float,
    steps: int,
    *,
    decay: float = 1.0,
    moving: slice = slice(None),
    drift: float = 0.0,
    jumps: Mapping[int, Tensor] | None = None,
    not_finite: int | None = None,
    sent: list[int] | None = None,
) -> list[tuple[Tensor, ...]]:
    """Parameters that take steps of that rms: (parameters, their last step, replica) after each gather.

    The same on both of two ranks, each of which has these as its rows of a matrix of twice the height.
    Steps become smaller by ``decay``; only the rows ``moving`` take any. All elements ``drift`` by so much beside that,
    and ``jumps`` are made at some gathers. One element is NaN for the gather ``not_finite``. ``sent`` is given the
    bytes of each gather.
    """
    states = simulate.states(2, "unit", 0, segments_of([("w", (2 * SHAPE[0], SHAPE[1]))], 2))
    generator = torch.Generator().manual_seed(3)
    mask = torch.zeros(SHAPE).index_fill_(0, torch.arange(SHAPE[0])[moving], 1.0).flatten()
    row, velocity, seen = start.flatten().clone(), torch.zeros(N), []
    for number in range(steps):
        velocity = momentum * velocity + math.sqrt(1 - momentum**2) * update * torch.randn(N, generator=generator)
        step = mask * (velocity * decay**number + drift) + (jumps or {}).get(number, 0)
        row = row + step
        for state in states:
            state.begin(torch.tensor(True))
        given = row.index_fill(0, torch.tensor([7]), math.nan) if number == not_finite else row
        done = simulate.lockstep([method.all_gather(given, state) for state in states])
        if sent is not None:
            sent.append(done.sent[0].total)
        seen.append((row, step, done.results[0][0].clone()))
    return seen
