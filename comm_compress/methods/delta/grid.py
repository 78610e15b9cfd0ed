"""Parameters on a grid, sent as how far they moved on it."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.core.state import State
from comm_compress.kernels import Matrices, Quantiser
from comm_compress.kernels.tools.scratch import Scratch, apart
from comm_compress.methods.delta.changes import Change, LossyDelta
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
    """

    def __init__(self, step: float) -> None:
        self.step = step
        self._quantiser = Quantiser(1.0, NEAREST, own=FINEST**2, beside=step**2, keep=False)

    def _change(self, row: Tensor, expected: Tensor, state: State) -> Change | None:
        return self._rounded(row, row, expected, self._matrices(row, state), None, state)

    def _rounded(
        self,
        row: Tensor,
        values: Tensor,
        expected: Tensor,
        matrices: Matrices,
        most: Tensor | None,
        state: State,
    ) -> Change | None:
        """The change that brings ``expected`` to ``values``, in steps of ``row``, whose squares are at most ``most``.

        ``most`` float64 ``[rows]``, one for each row of the matrices. None: the change is not finite.
        """
        scratch, made = apart(state.scratch, "own"), None
        if row.numel() and all(x.dtype == torch.float32 and x.is_contiguous() for x in (values, expected)):
            made = Quantised.of_change(values, expected, matrices, self._quantiser, scratch, most)
        elif (difference := self._finite_difference(values, expected, state)) is not None:
            made = Quantised.of(difference, matrices, self._quantiser, scratch, row.float().contiguous(), most)
        if made is None:
            return None
        self._keep(row, state)
        return self._made_of(made, scratch)

    def _matrices(self, row: Tensor, state: State) -> Matrices:
        return matrices_of_row(row.numel(), state.segments, False, row.device)

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
