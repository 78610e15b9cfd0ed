"""Picks the kernels for the device that a tensor lies on.

CPU tensors go to numba. CUDA tensors go to Triton, where a topic has such kernels and Triton is installed. All others
go to the reference, which runs on any device.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from comm_compress.kernels.interfaces.bitmap import BitmapKernels
from comm_compress.kernels.interfaces.bits import BitKernels
from comm_compress.kernels.interfaces.blocks import BlockKernels
from comm_compress.kernels.interfaces.casts import CastKernels
from comm_compress.kernels.interfaces.changes import ChangeKernels
from comm_compress.kernels.interfaces.entropy import EntropyKernels
from comm_compress.kernels.interfaces.factors import FactorKernels
from comm_compress.kernels.interfaces.finite import FiniteKernels
from comm_compress.kernels.interfaces.matrix_scales import MatrixScaleKernels
from comm_compress.kernels.interfaces.onebit import OneBitKernels
from comm_compress.kernels.interfaces.positions import PositionKernels
from comm_compress.kernels.interfaces.powers import PowerKernels
from comm_compress.kernels.interfaces.random import RandomKernels
from comm_compress.kernels.interfaces.residual import ResidualKernels
from comm_compress.kernels.interfaces.select import SelectKernels
from comm_compress.kernels.interfaces.sketch import SketchKernels
from comm_compress.kernels.interfaces.streams import StreamKernels
from comm_compress.kernels.interfaces.subsets import SubsetKernels
from comm_compress.kernels.interfaces.trits import TritKernels
from comm_compress.kernels.interfaces.ulp import UlpKernels
from comm_compress.kernels.interfaces.votes import VoteKernels

if TYPE_CHECKING:
    from comm_compress.kernels import cpu, reference, triton

Kernels = TypeVar("Kernels")


class Topic(Generic[Kernels]):
    """The kernels of one topic: ``topic(tensor)`` gives those for the tensor's device.

    They are a module of ``reference``, ``cpu`` or ``triton``. mypy checks each of them against the topic's interface:
    see the end of this file.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, tensor: Tensor) -> Kernels:
        """The kernels for the device that this tensor lies on."""
        kernels: Kernels = implementation(self.name, "cpu" if tensor.is_cpu else tensor.device.type)
        return kernels

    def on(self, device: torch.device) -> Kernels:
        """The kernels for this device, where there is no tensor yet."""
        kernels: Kernels = implementation(self.name, device.type)
        return kernels


bitmap = Topic[BitmapKernels]("bitmap")
bits = Topic[BitKernels]("bits")
blocks = Topic[BlockKernels]("blocks")
casts = Topic[CastKernels]("casts")
changes = Topic[ChangeKernels]("changes")
entropy = Topic[EntropyKernels]("entropy")
factors = Topic[FactorKernels]("factors")
finite = Topic[FiniteKernels]("finite")
matrix_scales = Topic[MatrixScaleKernels]("matrix_scales")
onebit = Topic[OneBitKernels]("onebit")
positions = Topic[PositionKernels]("positions")
powers = Topic[PowerKernels]("powers")
random = Topic[RandomKernels]("random")
residual = Topic[ResidualKernels]("residual")
select = Topic[SelectKernels]("select")
sketch = Topic[SketchKernels]("sketch")
streams = Topic[StreamKernels]("streams")
subsets = Topic[SubsetKernels]("subsets")
trits = Topic[TritKernels]("trits")
ulp = Topic[UlpKernels]("ulp")
votes = Topic[VoteKernels]("votes")


@functools.cache
def implementation(topic: str, device_type: str) -> Any:
    """The module with a topic's kernels, imported when first used: importing numba takes a third of a second."""
    folder = "reference"
    if device_type == "cpu":
        folder = "cpu"
    elif device_type == "cuda" and has_triton(topic):
        folder = "triton"
    return importlib.import_module(f"comm_compress.kernels.{folder}.{topic}")


@functools.cache
def has_triton(topic: str) -> bool:
    """Is Triton installed (it comes with CUDA builds of torch), and does this topic have kernels in it?"""
    wanted = ("triton", f"comm_compress.kernels.triton.{topic}")
    return all(importlib.util.find_spec(name) is not None for name in wanted)


if TYPE_CHECKING:  # each implementation has what its topic's interface asks
    _bitmap: tuple[BitmapKernels, ...] = (reference.bitmap, cpu.bitmap)
    _bits: tuple[BitKernels, ...] = (reference.bits, cpu.bits, triton.bits)
    _blocks: tuple[BlockKernels, ...] = (reference.blocks, cpu.blocks, triton.blocks)
    _casts: tuple[CastKernels, ...] = (reference.casts, cpu.casts, triton.casts)
    _changes: tuple[ChangeKernels, ...] = (reference.changes, cpu.changes)
    _entropy: tuple[EntropyKernels, ...] = (reference.entropy, cpu.entropy, triton.entropy)
    _factors: tuple[FactorKernels, ...] = (reference.factors, cpu.factors)
    _finite: tuple[FiniteKernels, ...] = (reference.finite, cpu.finite)
    _matrix_scales: tuple[MatrixScaleKernels, ...] = (
        reference.matrix_scales,
        cpu.matrix_scales,
        triton.matrix_scales,
    )
    _onebit: tuple[OneBitKernels, ...] = (reference.onebit, cpu.onebit, triton.onebit)
    _positions: tuple[PositionKernels, ...] = (reference.positions, cpu.positions)
    _powers: tuple[PowerKernels, ...] = (reference.powers, cpu.powers, triton.powers)
    _random: tuple[RandomKernels, ...] = (reference.random, cpu.random, triton.random)
    _residual: tuple[ResidualKernels, ...] = (reference.residual, cpu.residual)
    _select: tuple[SelectKernels, ...] = (reference.select, cpu.select, triton.select)
    _sketch: tuple[SketchKernels, ...] = (reference.sketch, cpu.sketch)
    _streams: tuple[StreamKernels, ...] = (reference.streams, cpu.streams, triton.streams)
    _subsets: tuple[SubsetKernels, ...] = (reference.subsets, cpu.subsets)
    _trits: tuple[TritKernels, ...] = (reference.trits, cpu.trits)
    _ulp: tuple[UlpKernels, ...] = (reference.ulp, cpu.ulp)
    _votes: tuple[VoteKernels, ...] = (reference.votes, cpu.votes, triton.votes)
