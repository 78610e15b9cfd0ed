"""Who brings whole matrices to an optimizer: what `Muon` asks, of real and of virtual ranks alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from torch import Tensor

from comm_compress.core.compressor import Compressor
from comm_compress.integrations import allreduce
from comm_compress.integrations.optim.matrices import Unit
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.registry import AnyMethod, chosen

OPTIMIZER: Final = "optimizer"
"""The operation's name in the ledger."""


Work = Callable[[Tensor], Tensor]
"""What an optimizer makes of a whole matrix ``[A, B]``: another one of that shape."""


class UnderWay(Protocol):
    """Work on one unit's whole matrices, for which ranks have begun to exchange their rows."""

    def finish(self) -> list[list[Tensor]]:
        """Do it; ``result[r][i]`` are the rows of what was made of matrix i that rank r of this process has."""


class Gathers(Protocol):
    """Brings together the rows of matrices that several ranks have."""

    @property
    def units(self) -> Sequence[Unit]:
        """All matrices, by the units that they are gathered in."""

    def begin(self, unit: Unit, updates: Sequence[Sequence[Tensor]], work: Work) -> UnderWay:
        """Begin to exchange: ``updates[r][i]`` are the rows of matrix i that rank r of this process has. Collective."""


class Whole:
    """Work on matrices that are here whole: nothing is on its way any more."""

    def __init__(self, unit: Unit, matrices: Sequence[Tensor], work: Work) -> None:
        self._unit, self._matrices, self._work = unit, list(matrices), work

    def finish(self) -> list[list[Tensor]]:
        """Do it, once for all ranks that this process is."""
        made = [self._work(matrix) for matrix in self._matrices]
        by_matrix = [[whole[rows] for rows in m.rows] for m, whole in zip(self._unit.matrices, made, strict=True)]
        return [list(of_rank) for of_rank in zip(*by_matrix, strict=True)]


def built(method: AnyMethod | None) -> Compressor:
    """Return the compressor that ``method`` describes; None: rows are sent as they are.

    ValueError, which begins with the argument's name, for a method that does not bring every element back.
    """
    made = chosen("method", method)
    allreduce.check_gather("method", made)
    return UNCOMPRESSED if made is None else made
