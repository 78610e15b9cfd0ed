"""What FSDP2's hooks are not told of the backward under way: whose gradients a unit's rows hold, and of which step."""

from __future__ import annotations

from typing import Any

from comm_compress.core.state import State
from comm_compress.integrations.fsdp import _compat
from comm_compress.integrations.fsdp.overlap import Reductions
from comm_compress.integrations.optimizer_steps import OptimizerSteps


class Backward:
    """Stands for ``post_backward`` of one FSDP2 parameter group, which collects its gradients and has them reduced.

    A parameter without a gradient is not reduced, as in stock FSDP2: its ``.grad`` stays None and no optimizer moves
    it. Only where a method remembers something of it (`states`: a residual that waits to be sent) does it take
    part with zeros, so that nothing of it is lost and the rows stay as they are.

    ``reductions``: where a reduce-scatter may stay under way when FSDP2 goes on; None: each ends before.
    """

    def __init__(
        self,
        group: Any,
        parameters: list[tuple[str, Any]],
        steps: OptimizerSteps,
        reductions: Reductions | None = None,
    ) -> None:
        self._group, self._parameters, self._steps, self.reductions = group, parameters, steps, reductions
        self._post_backward, self._number = group.post_backward, steps.number
        self.states: list[State] = []
        """The states of the gradients of this group."""
        self.reduced = _compat.trainable(parameters)
        """(name, FSDP2's record) of the parameters that the rows of the reduction under way hold."""
        self.step = 0
        """Reductions that see the same number belong to the same optimizer step."""
        self.divisor: float | None = None
        """What the total of the reduction that begins now is to be divided by, where it may stay under way: FSDP2 looks
        at it only after backward. None: FSDP2 divides, and goes on with the total, at once."""

    def __call__(self, *unused: Any) -> Any:
        """Note whose gradients are reduced, and in which optimizer step; then let FSDP2 reduce them."""
        if self._group.reduce_grads and (gradients := _compat.unreduced(self._group)):
            kept = {s.name for state in self.states if state.remembers for s in state.segments}
            for name, p in self._parameters:
                if name in kept and id(p) not in gradients:
                    gradients[id(p)] = _compat.give_zeros(p, next(iter(gradients.values())))
            self.reduced = [(name, p) for name, p in self._parameters if id(p) in gradients]
            if self._number != self._steps.number or not _compat.keeps_gradients(self._group):
                self.step += 1
            self._number = self._steps.number
            if self.reductions is not None:
                return self._reduce(self.reductions, *unused)
        return self._post_backward(*unused)

    def _reduce(self, reductions: Reductions, *unused: Any) -> Any:
        """Let FSDP2 reduce; the reduction stays under way where FSDP2 does nothing with its total before backward ends.

        That is decided by what is equal on all ranks.
        """
        if not _compat.in_backward() or not _compat.only_views_totals(self._group, self.reduced):
            reductions.finish()
            return self._post_backward(*unused)
        reductions.make_room()
        with _compat.undivided(self._group) as self.divisor:
            try:
                return self._post_backward(*unused)
            finally:
                self.divisor = None
