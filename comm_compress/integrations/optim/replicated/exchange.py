"""What an optimizer asks that owns what replicas exchange: an exchange of its own making, of one fragment at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from comm_compress.core.rounds import Request
from comm_compress.core.segments import Segment, flatten, segments_of
from comm_compress.core.state import State
from comm_compress.integrations.replicas.fragments import Fragment

ROUNDS: Final = 2
"""What an all-reduce of gradients would take: rounds beyond these are counted as extra ones."""

Rounds = Callable[[Tensor, State], Generator[Request, Any, Any]]
"""What one replica does with its rows ``[num_rows, n]`` of a fragment (float32, `flatten`): the rounds of an exchange.

Its result, a tensor or several, must be the same on every replica, bit for bit. What is this replica's alone (a
momentum, what was not sent) it keeps in the state, which is saved with the handle, and which a void step leaves as it
was. It may write to the rows.
"""


OwnWeights = Callable[[int], AbstractContextManager[None]]
"""Inside, the weights are those of one of the replicas that this process is."""


class UnderWay(Protocol):
    """An exchange whose first messages are being sent."""

    def finish(self) -> Any:
        """Take the remaining rounds; what they returned, its tensors in memory of their own."""


class Replicas(Protocol):
    """Replicas that have the same weights and gradients of their own, and that exchange what an optimizer says."""

    @property
    def fragments(self) -> Sequence[Fragment]:
        """All parameters, in parts that are exchanged at once; of FSDP2's parameters this rank's shards count."""

    @property
    def world(self) -> int:
        """How many replicas exchange with each other."""

    def lay_out(self, divided: bool, own_weights: OwnWeights | None = None) -> None:
        """Say, once, what an exchange's rows are: all in one (``[1, n]``), or ``divided`` as FSDP2 does, ``[W, n]``.

        ``own_weights``: see that; None: a replica's weights are what all have.
        """

    def remembered(self, fragment: Fragment, name: str) -> list[dict[str, Tensor]]:
        """Return what states remember under ``name``, by parameter, of each replica that this process is."""

    def own_weights(self, rank: int = 0) -> AbstractContextManager[None]:
        """Inside, the weights are those that a replica computes its gradients with.

        They are not what all replicas have where an optimizer makes local steps. ``rank``: which of the replicas that
        this process is.
        """

    def gradients(self, fragment: Fragment) -> list[dict[str, Tensor]]:
        """Return, of each replica that this process is, its gradients by name; a parameter that has none is left out.

        All replicas have gradients of the same parameters.
        """

    def begin(self, fragment: Fragment, tensors: Sequence[Mapping[str, Tensor]], rounds: Rounds) -> UnderWay:
        """Begin to exchange ``tensors``, by parameter, of each replica that this process is. Collective.

        Where an element is not finite, every row of that replica gets a NaN.
        """

    def void(self) -> None:
        """Take back what the exchanges of the step under way did to all states."""

    def zero_grad(self) -> None:
        """Forget gradients that are kept elsewhere than in the parameters."""


def next_version(state: State, name: str, like: Tensor, first: Tensor | None = None) -> Tensor:
    """Return memory to propose as the next version of what ``state`` has under ``name``, with the last one in it.

    Float32, shaped as ``like``. Where there is no last one: ``first``, or zeros.
    """
    version, old = state.spare(name, like, torch.float32), state.get(name)
    old = first if old is None else old
    return version.zero_() if old is None else version.copy_(old)


def rows_of(tensors: Mapping[str, Tensor], num_rows: int) -> Tensor:
    """Lay ``tensors`` out as float32 rows ``[num_rows, n]``, in new memory."""
    return flatten([at_least_1d(tensor).float() for tensor in tensors.values()], num_rows)


def layout(tensors: Mapping[str, Tensor], num_rows: int) -> tuple[Segment, ...]:
    """Return which of ``tensors`` lies where in those rows."""
    return segments_of([(name, tuple(at_least_1d(tensor).shape)) for name, tensor in tensors.items()], num_rows)


def at_least_1d(tensor: Tensor) -> Tensor:
    """Return ``tensor``, as a vector when it is a scalar: rows have places for these."""
    return tensor.view(-1) if tensor.dim() == 0 else tensor


def elements_of_all_reduce(tensors: Mapping[str, Tensor], world: int) -> int:
    """How many elements a rank sends in an all-reduce of ``tensors`` as they are, both halves, padding included."""
    return 2 * (world - 1) * layout(tensors, world)[-1].stop


def kept(made: Any) -> Any:
    """Return ``made`` with its tensors in memory of their own: an exchange's is used again by the next one."""
    return tree_map_only(Tensor, torch.clone, made)
