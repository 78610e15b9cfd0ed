"""What FSDP2's hooks are not told of the backward under way: whose gradients a unit's rows hold, and of which step."""

from __future__ import annotations

from typing import Any

from comm_compress.core.state import State
from comm_compress.integrations.fsdp import _compat
from comm_compress.integrations.optimizer_steps import OptimizerSteps


class Backward:
    """Stands for ``post_backward`` of one FSDP2 parameter group, which collects its gradients and has them reduced.

    A parameter without a gradient is not reduced, as in stock FSDP2: its ``.grad`` stays None and no optimizer moves
    it. Only where a method remembers something of it (`states`: a residual that waits to be sent) does it take
    part with zeros, so that nothing of it is lost and the rows stay as they are.
    """

    def __init__(self, group: Any, parameters: list[tuple[str, Any]], steps: OptimizerSteps) -> None:
        self._group, self._parameters, self._steps = group, parameters, steps
        self._post_backward, self._number = group.post_backward, steps.number
        self.states: list[State] = []
        """The states of the gradients of this group."""
        self.reduced = _compat.trainable(parameters)
        """(name, FSDP2's record) of the parameters that the rows of the reduction under way hold."""
        self.step = 0
        """Reductions that see the same number belong to the same optimizer step."""

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
        return self._post_backward(*unused)
