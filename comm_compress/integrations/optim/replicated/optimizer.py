"""What all optimizers that communicate have in common: one step of exchanges, and whether it is void."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from comm_compress.integrations.optim.replicated.exchange import OwnWeights, Replicas, UnderWay
from comm_compress.integrations.replicas.fragments import Fragment, local

Params = Iterable[nn.Parameter] | Iterable[Mapping[str, Any]]


class ReplicaOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer whose step exchanges something of its own between ``replicas``, and moves all of them alike.

    ``params``: the parameters of ``replicas``, or groups of them as torch's optimizers take them; None: all in one.
    A parameter without a gradient is left alone; all replicas have one, or none.

    All results of a step's exchanges are there before anything moves. Where one is not finite, on whichever replica
    that began, the step is void on all of them: no weight, momentum or residual changes, and ``finite`` is False until
    the next step. (Of sharded replicas the ranks that hold the same shards decide together: look at the gradients' norm
    over all ranks, as without any of this.)
    """

    divided = False
    """Are an exchange's rows divided among ranks (`Replicas.lay_out`)?"""

    def __init__(self, replicas: Replicas, params: Params | None, defaults: dict[str, Any]) -> None:
        for name in ("lr", "weight_decay"):
            if not defaults[name] >= 0:
                raise ValueError(f"{name} = {defaults[name]!r}: must be 0 or more")
        self._replicas = replicas
        every = [p for fragment in replicas.fragments for p in fragment.parameters.values()]
        given: list[Any] = every if params is None else list(params)
        if not given:
            raise ValueError("params: there are none; None stands for all that the replicas have")
        super().__init__(given, defaults)
        self._group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        if self._group_of.keys() != {id(p) for p in every}:
            raise ValueError("params: must be the parameters that the replicas have, each in one group")
        self.finite = True
        """Was everything that the last step's exchanges brought finite? The same on all replicas."""
        replicas.lay_out(self.divided, self._own_weights())
        for p in every:
            self.state[p]["step"] = torch.zeros((), dtype=torch.float32)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchange, and update every parameter that has a gradient; collective. Returns what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        made = list(self._exchanged())
        self.finite = all(bool(torch.isfinite(t).all()) for t in tree_leaves([result for _, result in made]))
        if not self.finite:
            self._replicas.void()
            return loss
        for fragment, result in made:
            for p in fragment.parameters.values():
                self.state[p]["step"] += 1
            self._apply(fragment, result)
        return loss

    def _exchanged(self) -> Iterable[tuple[Fragment, Any]]:
        """Yield each fragment, without parameters that have no gradient, and what its exchange brought.

        A fragment's messages travel while the one before it is decoded.
        """
        before: tuple[Fragment, UnderWay] | None = None
        for fragment in self._replicas.fragments:
            gradients = self._replicas.gradients(fragment)
            here = fragment._replace(parameters={name: fragment.parameters[name] for name in gradients[0]})
            if not here.parameters:
                continue
            following = here, self._begin(here, gradients)
            if before is not None:
                yield before[0], before[1].finish()
            before = following
        if before is not None:
            yield before[0], before[1].finish()

    @abstractmethod
    def _begin(self, fragment: Fragment, gradients: list[dict[str, Tensor]]) -> UnderWay:
        """Begin to exchange what this optimizer exchanges of ``fragment``; nothing but states may change."""

    @abstractmethod
    def _apply(self, fragment: Fragment, made: Any) -> None:
        """Move the parameters of ``fragment`` by what its exchange brought, which is finite."""

    def _own_weights(self) -> OwnWeights | None:
        """Return what gives a replica's own weights (`Replicas.own_weights`); None: they are what all have."""
        return None

    def _settings(self, p: nn.Parameter) -> dict[str, Any]:
        """The group's settings of a parameter."""
        return self._group_of[id(p)]

    def _decay(self, p: nn.Parameter) -> Tensor:
        """Decay a parameter's weights, decoupled from its update; return this rank's part of it, to be moved."""
        group, mine = self._settings(p), local(p)
        if group["weight_decay"]:
            mine.mul_(1 - group["lr"] * group["weight_decay"])
        return mine

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, also those that virtual replicas collected."""
        super().zero_grad(set_to_none)
        self._replicas.zero_grad()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what ``state_dict()`` gave, and look again which group each parameter is in."""
        super().load_state_dict(state_dict)
        self._group_of = {id(p): group for group in self.param_groups for p in group["params"]}
