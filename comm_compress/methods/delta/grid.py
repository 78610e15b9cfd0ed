"""Parameters on a grid, sent as how far they moved on it."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.state import State
from comm_compress.kernels import Matrices, Quantiser
from comm_compress.kernels.common.scratch import Scratch, apart
from comm_compress.methods.delta.changes import Change, LossyDelta
from comm_compress.methods.delta.moves import Moves
from comm_compress.methods.shared.scaled_matrices import Quantised, matrices_of_row

STEP = 0.02
NEAREST = 0.5
FINEST = 0.5  # of a row's change: a grid that is finer than that tells nothing more


class GridDelta(LossyDelta):
    """replica <- replica + k s, k = round((row - replica) / s): parameters rounded to multiples of s, in differences.

        s[i] = step rms_j(row[i, j])     for row i of a matrix, in quarters of an octave, a byte each;
                                         at least half of the rms of the change, so that zeros can begin to move

    The error is that of rounding the parameters themselves, at most s / 2 however small an update is, and does not
    depend on which way they move. A quantiser whose step goes with the change, with a dead zone or too few levels,
    holds back in just that direction: in one run of `gpt2-mini` replicas 0.4 updates away cost 6 % of perplexity, where
    rounding errors of up to 16 updates cost nothing (docs/log/learnt-about-methods.md).

    Most updates are smaller than s, so k is mostly 0, and fewer bits are sent as the learning rate falls (rANS): with
    updates of a share q of the parameters' rms, 2.2 bits at step = q, 1.4 at 2 q, 0.9 at 4 q, 0.5 at 10 q. Replicas
    follow float32 parameters; a matrix is a parameter's shard with its last dimension as columns.

    Where the learning rate is small, as in fine-tuning, a share of the weights is hundreds of updates, replicas stay
    where they are, and a model can be ruined (docs/findings/going-on.md). With ``moves`` m, a step is at most m of the
    row's largest moves so far (`Moves`). The largest, and not the last: as the rate falls, errors matter less, and a
    step that stays saves bits. While it grows, and in the first m gathers, numbers are rounded at random: at the
    beginning replicas are exact, so all elements have the same way to go to the middle of a step, and with rounding to
    nearest all would be behind. On a model that went on, steps of 16 moves cost 1.5 % of perplexity so, and nothing
    with rounding at random.
    """

    def __init__(self, step: float, moves: float | None = None) -> None:
        self.step, self.moves = step, moves
        self._quantiser = Quantiser(1.0, NEAREST, own=FINEST**2, beside=step**2, keep=False)

    def _change(self, row: Tensor, expected: Tensor, state: State) -> Change | None:
        matrices = matrices_of_row(row.numel(), state.segments, False, row.device)
        scratch, made, sent, most = apart(state.scratch, "own"), None, row, None
        if self.moves is not None:
            moves = self._moves(row, matrices, state)
            most = self.moves**2 * moves.largest
            unsettled = moves.grown | (moves.number <= self.moves)
            if row.device.type != "cpu" or bool(unsettled.any()):  # to ask a GPU would be to wait for it
                sent = self._at_random(row, torch.where(unsettled, most, 0), matrices, state)
        if row.numel() and all(x.dtype == torch.float32 and x.is_contiguous() for x in (sent, expected)):
            made = Quantised.of_change(sent, expected, matrices, self._quantiser, scratch, most)
        elif (difference := self._finite_difference(sent, expected, state)) is not None:
            made = Quantised.of(difference, matrices, self._quantiser, scratch, row.float().contiguous(), most)
        if made is None:
            return None
        if self.moves is not None:
            moves.keep(state)
        self._keep(row, state)
        return self._made_of(made, scratch)

    def _moves(self, row: Tensor, matrices: Matrices, state: State) -> Moves:
        """The moves of a row's matrices, this one counted."""
        known, before = Moves.known(matrices.num_rows, state, row.device), state.get("last")
        if before is None or before.shape != row.shape:  # it is that of another world size
            return known
        now, then = row.float().contiguous(), before.float().contiguous()
        return known.after(kernels.matrix_scales(row).change_mean_squares(now, then, matrices))

    def _at_random(self, row: Tensor, most: Tensor, matrices: Matrices, state: State) -> Tensor:
        """``row`` and noise of up to half a step: rounded to nearest, that is at random. As float32.

        ``most`` float64 ``[rows]``: the squares of steps are no more. (Steps are sent in quarters of an octave, and so
        are not just those of the noise.)
        """
        values = row.float().contiguous()
        squares = torch.minimum(self.step**2 * kernels.matrix_scales(row).row_mean_squares(values, matrices), most)
        steps = squares.sqrt().float().repeat_interleave(matrices.lengths, output_size=row.numel())
        noise = kernels.random(row).uniform(state.key("rounding"), row.numel(), row.device)
        return torch.addcmul(values, noise.sub_(0.5), steps)

    def _made_of(self, made: Quantised, scratch: Scratch) -> Change:
        return Change(made.message(scratch), lambda replica: _moved(replica, made))

    def _advance(self, replica: Tensor, data: Tensor, rank: int, state: State) -> None:
        _moved(replica, Quantised.read(data, replica.numel(), state.scratch))


def _moved(replica: Tensor, change: Quantised) -> None:
    """Add a change to a replica of any dtype, rounded once."""
    moved = replica.float()  # itself where it is float32
    change.add_to(moved)
    if moved is not replica:
        replica.copy_(moved)
