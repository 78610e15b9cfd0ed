"""A grid whose steps follow how far parameters move, for any learning rate."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.state import State
from comm_compress.kernels import Matrices
from comm_compress.methods.delta.changes import Change
from comm_compress.methods.delta.grid import GridDelta

GROWTH = 1.1  # the largest move is renewed by one so much larger; rows where that happens are rounded at random


class Moves(NamedTuple):
    """How far the rows of matrices have moved from one gather to the next, float64 ``[rows]`` each.

    ``last``: the mean square of the last move. ``largest``: the largest mean square that two moves in a row have
    reached; one alone may be no optimizer step, but weights that were loaded. ``number``: how many moves there were
    since ``largest`` was 0.
    """

    last: Tensor
    largest: Tensor
    number: Tensor

    def after(self, moved: Tensor) -> Moves:
        """These moves and one more, whose mean squares are ``moved``."""
        reached = torch.minimum(self.last, moved)
        largest = torch.where(reached > GROWTH**2 * self.largest, reached, self.largest)
        return Moves(moved, largest, self.number + (largest > 0))


class MovesDelta(GridDelta):
    """A grid whose step is at most ``moves`` of the row's largest moves so far.

        s[i] <= moves max_t rms_j(row_t[i, j] - row_(t-1)[i, j])     between gathers t - 1 and t, as `Moves` counts them

    Where the learning rate is small, as in fine-tuning, a share of the weights is hundreds of moves: on a grid alone,
    replicas stay where they are, and a model can be ruined (docs/findings/pretrained.md). The largest move counts, and
    not the last: as the rate falls, errors matter less, and a step that stays saves bits.

    While the largest move grows, and in the first ``moves`` gathers after a whole row was sent, numbers are rounded at
    random. For then replicas are exact, all elements have the same way to go to the middle of a step, and with rounding
    to nearest all would be behind. On a model that went on, steps of 16 moves cost 1.5 % of perplexity so, and with
    rounding at random nothing (docs/log/2026-11-26-all-elements-begin-alike.md).
    """

    def __init__(self, step: float, moves: float) -> None:
        super().__init__(step)
        self.moves = moves

    def _change(self, row: Tensor, expected: Tensor, state: State) -> Change | None:
        matrices, values = self._matrices(row, state), row
        kept, last = state.get("moves"), state.get("last")
        if kept is None or last is None:  # the state is that of a grid alone
            return None
        before = Moves(*kept)
        moves = before.after(self._moved(row, last, matrices))
        most = self.moves**2 * moves.largest
        unsettled = (moves.largest > before.largest) | (moves.number <= self.moves)
        noisy = torch.where(unsettled, most, 0)
        if row.device.type != "cpu" or bool(noisy.any()):  # to ask a GPU would be to wait for it
            values = self._with_noise(row, noisy, matrices, state)
        change = self._rounded(row, values, expected, matrices, most, state)
        if change is not None:
            state.put("moves", torch.stack(moves))
        return change

    def _moved(self, row: Tensor, last: Tensor, matrices: Matrices) -> Tensor:
        """The mean square of each row's move since the last gather."""
        vectors = row.float().contiguous(), last.float().contiguous()
        return kernels.matrix_scales(row).change_mean_squares(*vectors, matrices)

    def _with_noise(self, row: Tensor, most: Tensor, matrices: Matrices, state: State) -> Tensor:
        """``row`` and noise of up to half a step, float32: what is rounded to nearest then was rounded at random.

        ``most`` float64 ``[rows]``: the squares of steps are no more, and rows of 0 have no noise. (Steps are sent in
        quarters of an octave, and so are not just those of the noise.)
        """
        topic = kernels.matrix_scales(row)
        values = state.scratch("values", tuple(row.shape), torch.float32, row.device).copy_(row)
        squares = torch.minimum(self.step**2 * topic.row_mean_squares(values, matrices), most)
        topic.add_noise(values, squares.sqrt().float(), state.key("rounding"), matrices)
        return values

    def _sent_whole(self, row: Tensor, state: State) -> None:
        """Begin anew: all replicas of the row are exact, and it may be one of another world size."""
        super()._sent_whole(row, state)
        matrices = self._matrices(row, state)
        state.put("moves", torch.zeros(3, matrices.num_rows, dtype=torch.float64, device=row.device))
