"""How far the rows of parameters move between two gathers: the size that a step of theirs has."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress.core.state import State

GROWTH = 1.1  # the largest move is not renewed for less: rows that have grown are rounded otherwise


class Moves(NamedTuple):
    """Moves of the rows of matrices, as mean squares, float64 ``[rows]``.

    ``last``: the last one. ``largest``: the largest that two in a row have reached, since one alone may be no optimizer
    step (other weights were loaded). ``number``: how many there were since then. ``grown`` bool ``[rows]``: has the
    largest just become larger?
    """

    last: Tensor
    largest: Tensor
    number: Tensor
    grown: Tensor

    @classmethod
    def known(cls, num_rows: int, state: State, device: torch.device) -> Moves:
        """What `keep` kept, or that no row has moved yet."""
        kept = state.get("moves")
        if kept is None or kept.shape[1] != num_rows:  # another world size has other rows
            kept = torch.zeros(3, num_rows, dtype=torch.float64, device=device)
        last, largest, number = kept
        return cls(last, largest, number, torch.zeros_like(last, dtype=torch.bool))

    def after(self, moved: Tensor) -> Moves:
        """What is known once rows have ``moved``, by so much in the mean square."""
        reached = torch.minimum(self.last, moved)
        grown = reached > GROWTH**2 * self.largest
        largest = torch.where(grown, reached, self.largest)
        return Moves(moved, largest, self.number + (largest > 0), grown)

    def keep(self, state: State) -> None:
        """For the next gather."""
        state.put("moves", torch.stack([self.last, self.largest, self.number]))
