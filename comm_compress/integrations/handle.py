"""What every way of attaching gives back: a ledger, and states that can be saved, loaded and taken back."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from comm_compress.core.ledger import Ledger
from comm_compress.core.segments import segments_of
from comm_compress.core.state import State
from comm_compress.core.workspace import WorkspacePool
from comm_compress.integrations import rank_states as savers
from comm_compress.integrations.loss_scale import LossScale
from comm_compress.integrations.optimizer_steps import OptimizerSteps
from comm_compress.integrations.rank_states import RankStates


class BaseHandle(ABC):
    """The ledger and the states that every handle has, whatever it is attached to."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.steps: OptimizerSteps | None = None
        self.workspaces = WorkspacePool()
        self._scale = LossScale()

    @property
    def loss_scale(self) -> float:
        """What the loss, and so every gradient that comes by, is multiplied by; 1 at first.

        Who trains with a `torch.amp.GradScaler` sets it before each backward: ``handle.loss_scale =
        scaler.get_scale()``. Gradients are then compressed without the scale and handed on with it. A step that
        the scaler skips is void: call `rollback`. ValueError for a scale that is not positive and finite, and, when a
        collective begins, for gradients that are reduced in float16.
        """
        return self._scale.value

    @loss_scale.setter
    def loss_scale(self, scale: float) -> None:
        if not 0 < scale < math.inf:
            raise ValueError(f"loss_scale = {scale!r}: must be positive and finite")
        self._scale.value = float(scale)

    @property
    def ledgers(self) -> list[Ledger]:
        """The ledgers of the ranks that this process is: one."""
        return [self.ledger]

    @abstractmethod
    def _states(self) -> dict[str, State]:
        """Return every state by its name, "operation/unit": what `state_dict` saves."""

    @property
    def state_bytes(self) -> int:
        """The bytes that residuals and other states hold on this rank."""
        return sum(state.num_bytes for state in self._states().values())

    @property
    def workspace_bytes(self) -> int:
        """The bytes that collectives use while they run and keep for the next ones, beside `state_bytes`."""
        return self.workspaces.num_bytes

    def rollback(self) -> None:
        """Take back what the optimizer step under way did to every state. Call it when that step is skipped.

        All its micro-batches are taken back, however many of them reduced gradients. A step begins with the first
        reduction after an optimizer of the model's parameters made a step (any `torch.optim.Optimizer`: `step_ended`
        for others), after a `rollback`, after `state_dict`, and, of an FSDP2 unit, wherever no gradient of it is kept
        from before. Without a call the states count a skipped step as made. What all-gathers of parameters remember
        stays: they were gathered in earnest.
        """
        for key, state in self._states().items():
            if not key.startswith("all_gather/"):  # parameters were gathered in earnest
                state.rollback()

    def step_ended(self) -> None:
        """Note that an optimizer step was made, in loops that update parameters without a `torch.optim.Optimizer`."""
        if self.steps is not None:
            self.steps.number += 1

    @property
    def state_dict(self) -> Callable[[], dict[str, dict[str, Any]]]:
        """``state_dict()``: this rank's states by "operation/unit", nested dicts of tensors and plain values.

        Call it between optimizer steps: the last one counts as made. The tensors are the states' own, which the next
        step changes: save or copy them before it. Every rank has its own: torch.save it to a file of the rank's, or
        give `rank_states` to torch.distributed.checkpoint. Each entry also says whose it is (``world``, ``rank``), how
        its rows are laid out (``layouts``), which `comm_compress.reshard` needs, and what it holds (``names``).
        Raises ValueError for a program that would save one rank's states for all (`savers`).
        """
        savers.refuse(sys._getframe(1))
        return self._state_dict

    def _state_dict(self) -> dict[str, dict[str, Any]]:
        return {key: save(state) for key, state in self._states().items()}

    def rank_states(self) -> RankStates:
        """Return what torch's DCP saves and loads whole: ``{"comm": handle.rank_states()}`` on every rank."""
        return RankStates(self)

    def load_state_dict(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Put back what `state_dict` gave on the same rank of as many.

        Raises ValueError when anything differs, or is missing: then nothing is changed.
        """
        load(states, self._states())

    def state_dicts(self) -> list[dict[str, dict[str, Any]]]:
        """Return the `state_dict` of each rank that this process is: one."""
        return [self._state_dict()]

    def load_state_dicts(self, states: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
        """Put back what `state_dicts` gave, with the conditions of `load_state_dict`."""
        (mine,) = states
        if mine or self._states():  # nothing is remembered of DDP's buckets before the first reduction
            self.load_state_dict(mine)


def save(state: State) -> dict[str, Any]:
    """Return one state as plain values and tensors."""
    tensors = state.state_dict()
    layouts = {prefix: [[s.name, list(s.shape)] for s in segments] for prefix, segments in state.layouts()}
    whose = {"world": state.world, "rank": state.rank}
    return {**whose, "layouts": layouts, "names": sorted(tensors), "tensors": tensors}


def load(saved: Mapping[str, Mapping[str, Any]], states: Mapping[str, State]) -> None:
    """Load one rank's ``saved`` states into its ``states``: all of them or, with a ValueError, none."""
    if saved.keys() != states.keys():
        first, *others = sorted(saved.keys() ^ states.keys())
        more = f" and {len(others)} more" if others else ""
        raise ValueError(f"compressor state is of another model or another method: units differ: {first}{more}")
    for key, state in states.items():
        check(key, saved[key], state)
    for key, state in states.items():
        layouts = {
            prefix: segments_of([(name, tuple(shape)) for name, shape in layout], state.num_rows)
            for prefix, layout in saved[key]["layouts"].items()
        }
        state.load_state_dict(saved[key]["tensors"], layouts)


def check(key: str, saved: Mapping[str, Any], state: State) -> None:
    """ValueError when ``saved`` is not whole, not of this rank, of so many ranks, of (some of) these parameters."""
    if saved["world"] != state.world:
        raise ValueError(
            f"{key}: compressor state of {saved['world']} ranks does not fit {state.world}; pass all ranks' states "
            f"through comm_compress.reshard(states, {state.world}) first"
        )
    if saved["rank"] != state.rank:
        raise ValueError(f"{key}: compressor state is of rank {saved['rank']}, this is rank {state.rank}")
    here = [[s.name, list(s.shape)] for s in state.parameters]
    there, rest = saved["layouts"][""], iter(here)
    if bool(there) != bool(here) or not all(entry in rest for entry in there):  # some may never have had a gradient
        names = {name for name, _ in _differing(saved["layouts"][""], here)}
        raise ValueError(f"{key}: compressor state is of other parameters: {', '.join(sorted(names))}")
    if absent := sorted({"tick", *saved.get("names", ())} - saved["tensors"].keys()):
        raise ValueError(
            f"{key}: compressor state without its tensors {', '.join(absent)}. torch.distributed.checkpoint fills in "
            'only what it finds in the template: save and load {"comm": handle.rank_states()}, not handle.state_dict()'
        )


def _differing(a: Iterable[list[Any]], b: Iterable[list[Any]]) -> set[tuple[str, str]]:
    one, other = ({(name, str(shape)) for name, shape in layout} for layout in (a, b))
    return one ^ other or {("their order", "")}
