"""What is measured on: the FSDP2 units of a preset's model, or one square weight of any size."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from comm_compress.core.segments import Segment, segments_of
from fsdp_lab.models.architectures.families import blocks_of, new_config
from fsdp_lab.models.sketch import Sketch
from fsdp_lab.settings.models.presets import PRESETS

MOVED = 1e-3  # of a parameter's size, in one step
STEPS = 3  # different gradients and movements, used in turn


class Unit(NamedTuple):
    """One FSDP2 unit: which parameter lies where in a rank's row, and how often a step gathers it."""

    name: str
    segments: tuple[Segment, ...]
    gathers: int

    @property
    def n(self) -> int:
        """How many elements a rank's row has."""
        return self.segments[-1].stop

    def gradients(self, world: int) -> list[Tensor]:
        """The rows ``[world, n]`` of some steps: Gaussian, with a log-normal scale for each column of a matrix."""
        return [torch.cat([_drawn(s, world, step) for s in self.segments], 1) for step in range(STEPS)]

    def parameters(self) -> list[Tensor]:
        """A rank's row ``[n]`` after some steps, each parameter moved by about `MOVED` of its size between two."""
        moves = [torch.cat([_drawn(s, 1, step) for s in self.segments], 1)[0] for step in range(STEPS)]
        return list(torch.stack([moves[0], *(MOVED * move for move in moves[1:])]).cumsum(0))


def units_of_model(preset: str, world: int) -> list[Unit]:
    """The units that the trainer makes of a preset's model, the root first; sharded over ``world`` ranks.

    A step gathers a block's parameters for forward and again for backward, the root's once. ValueError for an unknown
    preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"--model: {preset!r} is none of {', '.join(PRESETS)}")
    known = PRESETS[preset]
    vocabulary = {"vocab_size": known.vocab_size} if known.vocab_size else {}
    model = Sketch.of(new_config(known.family, bos_token_id=0, eos_token_id=0, **{**known.shape, **vocabulary})).model
    blocks = blocks_of(model)
    inside = {id(p) for block in blocks.values() for p in block.parameters()}
    root = [(name, p) for name, p in model.named_parameters() if id(p) not in inside]
    return [
        Unit("root", _segments(root, world), 1),
        *(Unit(name, _segments(block.named_parameters(name), world), 2) for name, block in blocks.items()),
    ]


def one_weight(elements: int, world: int) -> Unit:
    """A unit of about ``elements``, at least 64: one weight, as square as powers of two allow. It is gathered once."""
    a = 1 << (elements.bit_length() - 1) // 2
    return Unit(f"{elements}", segments_of([("weight", (a, max(1, elements // a)))], world), 1)


def _segments(parameters: object, world: int) -> tuple[Segment, ...]:
    named: list[tuple[str, nn.Parameter]] = list(parameters)  # type: ignore[call-overload]
    return segments_of([(name, tuple(p.shape)) for name, p in named], world)


def _drawn(segment: Segment, world: int, step: int) -> Tensor:
    """Random numbers for a segment's columns of every rank's row, float32 ``[world, columns]``."""
    generator = torch.Generator().manual_seed(1000 * step + segment.start)
    width = segment.shape[-1] if len(segment.shape) > 1 else 1
    scale = torch.randn(width, generator=generator).exp()
    rows = torch.randn(world, (segment.stop - segment.start) // width, width, generator=generator)
    return (rows * scale).flatten(1)
