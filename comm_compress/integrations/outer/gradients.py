"""Parameters that all replicas move alike, by the mean of their gradients, while all others take local steps.

For these it is data-parallel training with gradients accumulated over some steps. It is for embeddings: where each
replica has an AdamW of its own, they make most of what local steps cost (docs/findings/local-steps.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from comm_compress.integrations.replicas.fragments import Fragment, local


class AddedGradients:
    """The gradients of one replica's ``fragment``, added up in float32 since replicas last exchanged them."""

    def __init__(self, fragment: Fragment) -> None:
        self.fragment = fragment
        self.steps = 0
        """How many inner steps they are of."""
        self._sums = {name: torch.zeros_like(mine, dtype=torch.float32) for name, mine in fragment.local().items()}

    @property
    def num_bytes(self) -> int:
        """The bytes of the sums."""
        return sum(total.nbytes for total in self._sums.values())

    @torch.no_grad()
    def take(self) -> None:
        """Add this step's gradients, and leave none: an optimizer passes over parameters without a gradient."""
        self.steps += 1
        for name, p in self.fragment.parameters.items():
            if p.grad is not None:
                self._sums[name] += local(p.grad)
                p.grad = None

    def means(self) -> list[tuple[str, Tensor]]:
        """Return the mean over the steps, float32, by name, and begin anew."""
        means = [(name, total.div_(max(self.steps, 1))) for name, total in self._sums.items()]
        self.steps, self._sums = 0, {name: torch.zeros_like(mean) for name, mean in means}
        return means

    @torch.no_grad()
    def give(self, means: Sequence[tuple[str, Tensor]]) -> None:
        """Let the optimizer find ``means`` as this step's gradients."""
        for name, mean in means:
            p = self.fragment.parameters[name]
            p.grad = torch.zeros_like(p)
            local(p.grad).copy_(mean)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the sums by name, and of how many steps they are."""
        return {"steps": self.steps, "sums": {name: total.clone() for name, total in self._sums.items()}}

    def check(self, state: Mapping[str, Any] | None) -> None:
        """ValueError when ``state`` is of other parameters."""
        saved = {} if state is None else {name: tuple(total.shape) for name, total in state["sums"].items()}
        here = {name: tuple(total.shape) for name, total in self._sums.items()}
        if saved != here:
            differing = sorted({name for name, _ in saved.items() ^ here.items()})
            raise ValueError(f"outer state: other parameters went by their gradients: {', '.join(differing[:5])}")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.steps = int(state["steps"])
        for name, total in self._sums.items():
            total.copy_(state["sums"][name])
