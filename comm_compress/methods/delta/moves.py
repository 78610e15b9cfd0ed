"""A grid whose steps follow how far parameters move, for any learning rate."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.state import State
from comm_compress.methods.delta.changes import Change
from comm_compress.methods.delta.grid import GridDelta

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


class MovesDelta(GridDelta):
    """A grid whose step is at most ``moves`` of the row's largest moves so far.

        s[i] <= moves max_t rms_j(row_t[i, j] - row_(t-1)[i, j])     between gathers t - 1 and t, as `Moves` counts them

    Where the learning rate is small, as in fine-tuning, a share of the weights is hundreds of moves: on a grid alone,
    replicas stay where they are, and a model can be ruined (docs/findings/going-on.md). The largest move counts, and
    not the last: as the rate falls, errors matter less, and a step that stays saves bits.

    While the largest move grows, and in the first ``moves`` gathers, numbers are rounded at random. At the beginning
    replicas are exact, so all elements have the same way to go to the middle of a step, and with rounding to nearest
    all would be behind. On a model that went on, steps of 16 moves cost 1.5 % of perplexity so, and with rounding at
    random nothing (docs/log/2026-11-26-all-elements-begin-alike.md).
    """

    def __init__(self, step: float, moves: float) -> None:
        super().__init__(step)
        self.moves = moves

    def _change(self, row: Tensor, expected: Tensor, state: State) -> Change | None:
        moves, values = self._moves(row, state), row
        most = self.moves**2 * moves.largest
        at_random = torch.where(moves.grown | (moves.number <= self.moves), most, 0)
        if row.device.type != "cpu" or bool(at_random.any()):  # to ask a GPU would be to wait for it
            values = self._at_random(row, at_random, state)
        change = self._rounded(row, values, expected, most, state)
        if change is not None:
            moves.keep(state)
        return change

    def _moves(self, row: Tensor, state: State) -> Moves:
        """The moves of a row's matrices, this one counted."""
        matrices, before = self._matrices(row, state), state.get("last")
        known = Moves.known(matrices.num_rows, state, row.device)
        if before is None or before.shape != row.shape:  # it is that of another world size
            return known
        now, then = row.float().contiguous(), before.float().contiguous()
        return known.after(kernels.matrix_scales(row).change_mean_squares(now, then, matrices))

    def _at_random(self, row: Tensor, most: Tensor, state: State) -> Tensor:
        """``row`` and noise of up to half a step: rounded to nearest, that is at random. As float32.

        ``most`` float64 ``[rows]``: the squares of steps are no more. (Steps are sent in quarters of an octave, and so
        are not just those of the noise.)
        """
        matrices, topic = self._matrices(row, state), kernels.matrix_scales(row)
        values = state.scratch("values", tuple(row.shape), torch.float32, row.device).copy_(row)
        squares = torch.minimum(self.step**2 * topic.row_mean_squares(values, matrices), most)
        topic.add_noise(values, squares.sqrt().float(), state.key("rounding"), matrices)
        return values
