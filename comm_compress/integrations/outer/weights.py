"""The outer parameters: what all replicas agreed on when they last synchronised, and what moves them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from comm_compress.integrations.outer.optimizers import OptimizerFactory
from comm_compress.integrations.replicas.fragments import Fragment


class OuterParameters:
    """A float32 copy of every parameter, the same on all replicas bit for bit, and the outer optimizer.

    A sharded parameter's copy is of this rank's part, so the optimizer sees parts too: right for SGD, Adam and whatever
    else works element by element.
    """

    def __init__(self, fragments: Sequence[Fragment], optimizer: OptimizerFactory) -> None:
        self.values = {
            name: nn.Parameter(value.to(torch.float32, copy=True))
            for fragment in fragments
            for name, value in fragment.local().items()
        }
        # where nothing takes local steps there are none; an optimizer wants to have one
        self.optimizer = optimizer(list(self.values.values()) or [nn.Parameter(torch.empty(0))])

    @property
    def num_bytes(self) -> int:
        """The bytes of the copies and of what the outer optimizer remembers."""
        remembered = (t for state in self.optimizer.state.values() for t in state.values() if isinstance(t, Tensor))
        return sum(p.nbytes for p in self.values.values()) + sum(t.nbytes for t in remembered)

    @torch.no_grad()
    def pseudo_gradient(self, fragment: Fragment) -> list[tuple[str, Tensor]]:
        """Return a replica's pseudo-gradients: its parameters at the last synchronisation minus those of now, float32.

        In bfloat16 the former are the outer parameters as they were rounded: a replica that has not moved sends zeros.
        """
        return [(name, self.values[name].to(now.dtype).float() - now.float()) for name, now in fragment.local().items()]

    @torch.no_grad()
    def step(self, means: Sequence[tuple[str, Tensor]]) -> None:
        """Let the outer optimizer move the outer parameters of these names, with their mean pseudo-gradients."""
        for name, mean in means:
            self.values[name].grad = mean
        self.optimizer.step()
        for name, _ in means:
            self.values[name].grad = None

    @torch.no_grad()
    def put(self, fragment: Fragment, mixing: float = 0.0) -> None:
        """Give a replica the outer parameters, with the share ``mixing`` of its own ones."""
        for name, now in fragment.local().items():
            outer = self.values[name]
            now.copy_(outer if mixing == 0 else torch.lerp(outer, now.float(), mixing))

    def state_dict(self) -> dict[str, Any]:
        """Return copies by name, and the optimizer's state."""
        return {
            "parameters": {name: p.detach() for name, p in self.values.items()},
            "optimizer": self.optimizer.state_dict(),
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """ValueError when ``state`` is of other parameters."""
        saved = {name: tuple(t.shape) for name, t in state["parameters"].items()}
        here = {name: tuple(p.shape) for name, p in self.values.items()}
        if saved != here:
            differing = sorted({name for name, _ in saved.items() ^ here.items()})
            raise ValueError(f"outer state is of other parameters: {', '.join(differing[:5])}")
        there, mine = state["optimizer"]["param_groups"], self.optimizer.state_dict()["param_groups"]
        if [(*sorted(group), group["params"]) for group in there] != [
            (*sorted(group), group["params"]) for group in mine
        ]:
            raise ValueError(f"outer state is of another outer optimizer than {type(self.optimizer).__name__}")

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back the outer parameters and what else ``state_dict`` gave."""
        for name, p in self.values.items():
            p.copy_(state["parameters"][name])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
