"""Every rank has states of its own: what torch.distributed.checkpoint can keep whole, and who would keep less."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Protocol

import torch.distributed as dist

_BY_RANK = "torch.save(handle.state_dict(), f'comm-{rank}.pt') and load_state_dict() of it, on every rank"
_LIGHTNING = f"Lightning saves what is no module on one rank for all. Beside fabric.save do {_BY_RANK}"
REFUSED = {
    "accelerate": f"accelerate saves what is registered on one rank for all. Beside save_state do {_BY_RANK}",
    "lightning": _LIGHTNING,
    "lightning_fabric": _LIGHTNING,
    "torch.distributed.checkpoint": (
        "torch.distributed.checkpoint keeps one rank's value of a key that several ranks have. Give it "
        '{"comm": handle.rank_states()}, to save and to load'
    ),
}
"""Programs that ask an object for its `state_dict` and keep one rank's, and what to do instead."""


def refuse(caller: FrameType, *but: str) -> None:
    """ValueError when the code of ``caller`` is one of ``REFUSED``, those in ``but`` left out."""
    module = f"{caller.f_globals.get('__name__', '')}."
    for name, why in REFUSED.items():
        if name not in but and module.startswith(f"{name}."):
            raise ValueError(f"every rank has compressor states of its own: {why}")


class Rankwise(Protocol):
    """What `RankStates` needs of a handle."""

    def state_dicts(self) -> list[dict[str, dict[str, Any]]]:
        """Return the states of each rank that this process is."""

    def load_state_dicts(self, states: list[Mapping[str, Mapping[str, Any]]]) -> None:
        """Put back what `state_dicts` gave, a mapping for each rank."""


class RankStates:
    """A handle as torch.distributed.checkpoint's ``Stateful``: whatever is remembered when it is saved comes back.

        dcp.save({"model": ..., "comm": handle.rank_states()}, checkpoint_id=folder)
        dcp.load({"model": ..., "comm": handle.rank_states()}, checkpoint_id=folder)       # on as many ranks

    DCP has one name space for all ranks, and loads into a template only what the template has. So a rank's states go
    under a key with the rank in it, and as one value: a tuple, into which DCP does not look, so that a handle
    which has reduced nothing yet can name it. It is pickled (a copy of the rank's states in host memory while it is
    saved), so load no checkpoint from strangers. Raises ValueError when loaded on another number of ranks
    (DCP itself: "Missing key"), and for a program that would save one rank's states for all.
    """

    def __init__(self, handle: Rankwise) -> None:
        self._handle = handle

    @property
    def state_dict(self) -> Callable[[], dict[str, Any]]:
        """``state_dict()`` gives one value, under a key with this rank in it."""
        refuse(sys._getframe(1), "torch.distributed.checkpoint")
        return self._state_dict

    def _state_dict(self) -> dict[str, Any]:
        return {_key(): (self._handle.state_dicts(),)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave on the same rank."""
        if _key() not in state_dict:
            raise ValueError(f"compressor states of {', '.join(state_dict)}, not of {_key()}")
        (states,) = state_dict[_key()]
        self._handle.load_state_dicts(states)


def _key() -> str:
    return f"rank {dist.get_rank()} of {dist.get_world_size()}"
