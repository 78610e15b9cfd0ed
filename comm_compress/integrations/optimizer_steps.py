"""Where one optimizer step ends and the next one begins, seen from the gradients' side."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook


class OptimizerSteps:
    """Counts how often an optimizer of a model's parameters has made a step.

    Torch tells about every `torch.optim.Optimizer`, whoever calls it (a trainer, a gradient scaler), after its step.
    ``number`` means nothing by itself: two reductions that see the same one belong to the same optimizer step. It may
    also grow for a step that the optimizer skips inside (a fused one with a gradient scaler): until the next
    reduction begins, nothing has been accepted yet. Without a model the steps of all optimizers are counted.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.number = 0
        self._model = weakref.ref(model) if model is not None else None
        _counting.add(self)
        _listen()

    def close(self) -> None:
        """Count no further steps of any optimizer."""
        _counting.discard(self)

    def seen(self, optimizer: torch.optim.Optimizer) -> None:
        """Count the step that ``optimizer`` has made, if it is one of this model's."""
        if self._model is None:
            self.number += 1
            return
        model = self._model()
        mine = {id(p) for p in model.parameters()} if model is not None else ()
        self.number += any(id(p) in mine for group in optimizer.param_groups for p in group["params"])


_counting: weakref.WeakSet[OptimizerSteps] = weakref.WeakSet()
_listening: list[Any] = []


def _listen() -> None:
    """One hook in a process, for good: what nobody counts any more costs nothing."""
    if not _listening:
        _listening.append(register_optimizer_step_post_hook(_after_step))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> None:
    for steps in list(_counting):
        steps.seen(optimizer)
