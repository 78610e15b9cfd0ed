"""Local steps in the training loop: when replicas that train by themselves synchronise, and what if that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

import comm_compress as cc
from fsdp_lab.settings.groups import CommConfig

Outer = cc.outer.Handle | cc.outer.VirtualReplicas
"""What synchronises this replica with others, or all that this process plays."""


class LocalSteps:
    """The synchronisations of a training of ``total_steps`` steps; ``outer`` None: no replica trains by itself.

    ``say`` gets a line when a synchronisation was void.
    """

    def __init__(self, outer: Outer | None, total_steps: int, say: Callable[[str], None]) -> None:
        self._outer, self._total_steps, self._say = outer, total_steps, say

    def before_update(self) -> None:
        """Between clipping and the optimizer's step, unless all skip it: exchange gradients, where they are due.

        They are due in the training's last step, too. Collective.
        """
        if self._outer is None:
            return
        step = self._outer.inner_steps + 1
        if not self._outer.reduce_gradients(now=step == self._total_steps):
            self._say(
                f"the mean gradient of step {step} is void: a replica's gradients are not finite; what it would have "
                "moved stays where it is"
            )

    def after_update(self, step: int, taken: bool = True) -> None:
        """Synchronise what is due after the optimizer's ``step``, ``taken`` or not; after the last one everything.

        So a training ends with one model, which has what every replica has learnt. Where not all that replicas sent is
        finite, they go back to what they agreed on before, and train on from there. Collective.
        """
        if self._outer is None:
            return
        done = self._outer.step(taken)
        if step == self._total_steps and len(done) < self._outer.schedule.num_fragments:
            done = self._outer.synchronise()
        if done and not self._outer.finite:
            self._outer.restore()
            self._say(
                f"synchronisation after step {step} is void: a replica's weights are not finite; all go back to those "
                "of the last one"
            )


def own_rates(outer: Outer | None, config: CommConfig) -> Mapping[nn.Parameter, float]:
    """The parameters of all replicas in this process that have a rate of their own, in multiples of the others'."""
    return {} if outer is None else dict.fromkeys(outer.by_gradient, config.rate_by_gradient)
