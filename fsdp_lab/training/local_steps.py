"""Local steps in the training loop: when replicas that train by themselves synchronise, and what if that fails."""

from __future__ import annotations

from collections.abc import Callable

import comm_compress as cc

Outer = cc.outer.Handle | cc.outer.VirtualReplicas
"""What synchronises this replica with others, or all that this process plays."""


class LocalSteps:
    """The synchronisations of a training of ``total_steps`` steps; ``outer`` None: no replica trains by itself.

    ``say`` gets a line when a synchronisation was void.
    """

    def __init__(self, outer: Outer | None, total_steps: int, say: Callable[[str], None]) -> None:
        self._outer, self._total_steps, self._say = outer, total_steps, say

    def after_update(self, step: int) -> None:
        """Synchronise what is due after the optimizer's ``step``, taken or skipped; after the last one everything.

        So a training ends with one model, which has what every replica has learnt. Where not all that replicas sent is
        finite, they go back to what they agreed on before, and train on from there. Collective.
        """
        if self._outer is None:
            return
        done = self._outer.step()
        if step == self._total_steps and len(done) < self._outer.schedule.num_fragments:
            done = self._outer.synchronise()
        if done and not self._outer.finite:
            self._outer.restore()
            self._say(
                f"synchronisation after step {step} is void: a replica's weights are not finite; all go back to those "
                "of the last one"
            )
