"""Optimizers that communicate, on real ranks: `between` and the handle it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from comm_compress.core.ledger import Collective
from comm_compress.core.state import State
from comm_compress.core.tracing import span
from comm_compress.drive import transport
from comm_compress.integrations.handle import BaseHandle
from comm_compress.integrations.optim.gathers import OPTIMIZER
from comm_compress.integrations.optim.replicated.exchange import (
    ROUNDS,
    OwnWeights,
    Rounds,
    elements_of_all_reduce,
    kept,
)
from comm_compress.integrations.optim.replicated.states import States, require_first
from comm_compress.integrations.replicas.fragments import Fragment, Named, divide, local, trainable
from comm_compress.integrations.replicas.messages import one_message
from comm_compress.integrations.replicas.preconditions import group_of, require_equal, require_no_reduction
from comm_compress.registry import AnyMethod, chosen


class Handle(BaseHandle):
    """What `between` returns: what an optimizer that communicates asks, a ledger (operation "optimizer"), and states.

    ``state_dict()``, `rank_states` and their likes hold what each replica has of its own (DeMo's momentum, what signs
    left out); what all replicas have alike is the optimizer's ``state_dict()``. Both together go on bit for bit.
    """

    def __init__(self, fragments: Sequence[Fragment], group: dist.ProcessGroup, seed: int) -> None:
        super().__init__()
        self.fragments = list(fragments)
        """All parameters, in parts that are exchanged at once."""
        self.world = dist.get_world_size(group)
        """How many replicas there are."""
        self._group, self._rank, self._seed = group, dist.get_rank(group), seed
        self._own: States | None = None
        self._weights: OwnWeights | None = None

    def lay_out(self, divided: bool, own_weights: OwnWeights | None = None) -> None:
        """See `Replicas.lay_out`: the optimizer calls it when it is made."""
        require_first(self._own)
        self._own, self._weights = States(self.fragments, self._rank, self.world, self._seed, divided), own_weights

    def remembered(self, fragment: Fragment, name: str) -> list[dict[str, Tensor]]:
        """Return what this replica's states remember under ``name``, by parameter."""
        assert self._own is not None, "an optimizer laid it out"
        return [self._own.remembered(fragment, name)]

    def own_weights(self, rank: int = 0) -> AbstractContextManager[None]:
        """Inside, the weights are those that this replica computes its gradients with (`Replicas.own_weights`)."""
        return nullcontext() if self._weights is None else self._weights(rank)

    def _states(self) -> dict[str, State]:
        return {} if self._own is None else self._own.named()

    def rollback(self) -> None:
        """Do nothing: a step that is skipped has exchanged nothing, and one that was not finite took itself back."""

    def void(self) -> None:
        """Take back what the exchanges of the step under way did to all states."""
        if self._own is not None:
            self._own.void()

    def gradients(self, fragment: Fragment) -> list[dict[str, Tensor]]:
        """Return this replica's gradients, the only ones here, by name."""
        return [{name: local(p.grad) for name, p in fragment.parameters.items() if p.grad is not None}]

    def zero_grad(self) -> None:
        """Do nothing: gradients are the parameters' own."""

    def begin(self, fragment: Fragment, tensors: Sequence[Mapping[str, Tensor]], rounds: Rounds) -> _UnderWay:
        """Begin to exchange this replica's ``tensors``. On gloo the first messages travel while the caller computes."""
        assert self._own is not None, "an optimizer laid it out"
        (mine,) = tensors
        return _UnderWay(self, self._own, fragment, mine, rounds)


class _UnderWay:
    """An exchange over a process group, whose first messages are being sent."""

    def __init__(
        self, handle: Handle, states: States, fragment: Fragment, tensors: Mapping[str, Tensor], rounds: Rounds
    ) -> None:
        self._handle, self._fragment = handle, fragment.name
        self._elements = elements_of_all_reduce(tensors, handle.world)
        device = next(iter(tensors.values())).device
        with span(f"{OPTIMIZER} ({fragment.name})"):
            self._collective = Collective(device)
            start = self._collective.now()
            self._workspace = handle.workspaces.acquire(device)
            rows, self._state = states.begin(fragment, tensors, self._workspace)
            self._collective.spent("encode", start)
            self._running: transport.Running[Any] = transport.Running(
                rounds(rows, self._state), handle._group, self._collective, self._workspace
            )

    def finish(self) -> Any:
        """Take the remaining rounds; what they returned."""
        with span(f"{OPTIMIZER} ({self._fragment})"):
            made = self._running.result()
            start = self._collective.now()
            made = kept(made)
            self._state.end()
            self._handle.workspaces.release(self._workspace)
            self._collective.spent("decode", start)
        finite = self._state.finite
        self._handle.ledger.add(OPTIMIZER, self._fragment, self._collective, self._elements, 4, finite, ROUNDS)
        return made


def check_message(method: AnyMethod | None, *, of_fixed_size: bool = False) -> None:
    """ValueError, which begins with "method", when it cannot carry what an optimizer exchanges between replicas.

    ``of_fixed_size``: all ranks must know how long a message is, as `EF21Muon`'s servers do.
    """
    one_message(chosen("method", method), of_fixed_size=of_fixed_size)


def between(
    model: Named,
    group: dist.ProcessGroup | DeviceMesh | None = None,
    *,
    fragments: int | Sequence[Sequence[str]] = 1,
    seed: int = 0,
) -> Handle:
    """Let an optimizer exchange what it wants between the ranks of ``group``, which reduce no gradients.

        replicas = cc.optim.between(model, mesh["replica"])
        optimizer = cc.optim.DeMo(replicas, lr=1e-3)
        ...
        loss.backward()             # of this replica's own batch; nothing is sent
        optimizer.step()            # exchanges, and moves all replicas alike

    ``model``: a module, or named parameters: plain, or sharded by FSDP2 over another mesh dimension than ``group``,
    each of whose ranks then holds the same shard (HSDP without its all-reduce). No DistributedDataParallel around it.
    ``group``: the replicas, as a process group or a 1-D mesh; None: all ranks.
    ``fragments``: how many exchanges a step has, of about equal size, or lists of names of modules and parameters.
    ``seed``: of the methods' own random numbers.

    Raises ValueError when replicas do not begin equal, and when something else reduces gradients among them.
    """
    replicas = group_of(group)
    if not isinstance(model, nn.Module):
        model = list(model)
    parameters = trainable(model)
    require_no_reduction(model, parameters, replicas)
    require_equal(parameters, replicas)
    return Handle(divide(parameters, fragments), replicas, seed)
