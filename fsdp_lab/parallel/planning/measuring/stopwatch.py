"""The times of a layout's parts on this device alone: the divided model runs with collectives that send nothing.

What runs between two collectives is the real model's own code, with this rank's share of weights and positions. Every
collective notes the time in forward, and again when its gradient passes in backward.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

import comm_compress as cc
from fsdp_lab.parallel.division.layouts import LAYOUTS
from fsdp_lab.parallel.division.wiring import Collective, Wiring
from fsdp_lab.parallel.models.divided import Divided
from fsdp_lab.parallel.planning.steps.work import PARTS

Note = Callable[[str], None]


class _Passed(torch.autograd.Function):
    """A collective's result of the right shape, without the collective, and so its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, shape: tuple[int, ...], note: Note) -> Tensor:
        ctx.name, ctx.shape, ctx.note = name, x.shape, note
        note(f"{name} forward")
        return _fitted(x, shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.note(f"{ctx.name} backward")
        return _fitted(gradient, ctx.shape), None, None, None


def _fitted(x: Tensor, shape: Sequence[int]) -> Tensor:
    """``x`` in another shape: cut, or repeated, in the one dimension that differs."""
    for dim, (old, new) in enumerate(zip(x.shape, shape, strict=True)):
        if old != new:
            repeated = torch.cat([x] * -(-new // old), dim) if new > old else x
            return repeated.narrow(dim, 0, new).contiguous()
    return x.clone()


class Stopwatch(Wiring):
    """The wiring of rank 0 of two, which has the share ``share`` of everything (1: of one rank that has all).

    ``alone``: a group of this rank only. ``marks``: the names of collectives passed, each with its time in seconds.
    """

    def __init__(self, layout: str, share: float, alone: dist.ProcessGroup) -> None:
        shares = [1.0] if share == 1 else [share, 1 - share]
        super().__init__(LAYOUTS[layout], alone, shares, cc.parallel.Activations(), cc.parallel.Activations())
        self.marks: list[tuple[str, float]] = []

    @property
    def rank(self) -> int:
        """0: what is timed alone is the first rank's part."""
        return 0

    @property
    def world(self) -> int:
        """Two, or one that has everything."""
        return len(self.shares)

    def note(self, name: str) -> None:
        """Remember that ``name`` was passed now."""
        self.marks.append((name, time.perf_counter()))

    def enter(self, name: str) -> Collective:
        """As the wiring's, but sends nothing."""
        return lambda x: self._passed(x, name, 1, self.length)

    def enter_some(self, name: str) -> Callable[[Tensor, Sequence[int]], Tensor]:
        """As the wiring's, but sends nothing."""
        return lambda x, sizes: self._passed(x, name, 0, sum(sizes))

    def leave(self, name: str) -> Collective:
        """As the wiring's, but sends nothing."""
        return lambda x: self._passed(x, name, 1, len(self.my_positions()))

    def gather_keys(self, name: str) -> Collective:
        """As the wiring's, but sends nothing."""
        return lambda x: self._passed(x, name, 2, self.length)

    def _passed(self, x: Tensor, name: str, dim: int, size: int) -> Tensor:
        shape = tuple(size if i == dim else n for i, n in enumerate(x.shape))
        passed: Tensor = _Passed.apply(x, name, shape, self.note)  # type: ignore[no-untyped-call]
        return passed


def part_of(before: str, after: str) -> str:
    """Which part runs between two marks: "attention", "mlp", "rest" of a block, or "" for the ends of the model."""
    (place, way), (other, _) = before.rsplit(" ", 1), after.rsplit(" ", 1)
    first, last = (place, other) if way == "forward" else (other, place)
    for part in ("attention", "mlp"):
        if first.endswith(f".{part}.in") and last == f"{first.removesuffix('in')}out":
            return part
    inner = all(name.rsplit(".", 1)[-1] in ("in", "out", "keys") for name in (place, other))
    return "rest" if inner and before.split()[1] == after.split()[1] else ""


def step_times(model: Divided, batch: Tensor, repeats: int) -> dict[str, float]:
    """Seconds of forward and backward of ``model``, whose wiring is a `Stopwatch`, by the parts of `PARTS`.

    ``repeats`` steps after one that is not timed. Those of a block are means over the model's blocks (which must be 2
    or more). A quota stops a rank in some steps during one part, in others during another: the parts are means over
    the steps, in proportion of which the median step is divided. "ends" is what is left of the step.
    """
    watch = model.wiring
    assert isinstance(watch, Stopwatch)
    layers = len(model.blocks)
    taken: dict[str, list[float]] = defaultdict(list)
    whole = []
    for repeat in range(repeats + 1):
        model.zero_grad()
        watch.marks.clear()
        watch.note("start forward")
        (model(batch) / model.num_targets(batch)).backward()
        watch.note("end backward")
        if repeat:
            whole.append(watch.marks[-1][1] - watch.marks[0][1])
            for part, seconds in _by_part(watch.marks, layers, _layout_name(watch)).items():
                taken[part].append(seconds)
    usual = statistics.median(whole) / statistics.fmean(whole)
    return {part: usual * statistics.fmean(times) for part, times in taken.items()}


def _layout_name(watch: Stopwatch) -> str:
    return next(name for name, layout in LAYOUTS.items() if layout == watch.layout)


def _by_part(marks: Sequence[tuple[str, float]], layers: int, layout: str) -> dict[str, float]:
    """Seconds of each part in one step."""
    lasted: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for (before, start), (after, stop) in itertools.pairwise(marks):
        if part := part_of(before, after):
            lasted[part, _kind(before), _kind(after)].append(stop - start)
    block: dict[str, float] = {part: 0.0 for part in PARTS[layout] if part != "ends"}
    for (part, _, _), times in lasted.items():
        block[part] += statistics.fmean(times)
    ends = marks[-1][1] - marks[0][1] - layers * sum(block.values())
    return {**block, "ends": max(0.0, ends)}


def _kind(mark: str) -> str:
    """A mark's name without the number of its block: "mlp.in forward"."""
    return ".".join(mark.rsplit(".", 2)[-2:])
