"""An all-reduce made of the other two collectives: what DDP needs, and HSDP between its replicas."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from comm_compress.core.compressor import Compressor
from comm_compress.core.ledger import Collective, Ledger, Op
from comm_compress.core.rounds import Reduced, Request
from comm_compress.core.segments import (
    Ranges,
    Segment,
    flatten,
    moved_together,
    other_columns,
    put_columns,
    segments_of,
    take_columns,
    unflatten,
)
from comm_compress.core.state import State
from comm_compress.core.tracing import spanned
from comm_compress.core.workspace import Workspace, WorkspacePool
from comm_compress.drive import transport
from comm_compress.integrations.loss_scale import LossScale
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.wrappers.error_feedback import ErrorFeedback

AllReduceRounds = Callable[[Tensor, Compressor, Compressor, State, float], Generator[Request, Any, Tensor]]
"""What gives the rounds of an all-reduce from the arguments of `all_reduce`, with its result."""


def all_reduce(
    rows: Tensor, reduce: Compressor, gather: Compressor, state: State, divisor: float
) -> Generator[Request, Any, Tensor]:
    """The rounds of one all-reduce of ``rows`` ``[W, n]``; returns the sum over ranks over ``divisor``, ``[W, n]``.

    ``reduce`` brings row d to rank d, where it is summed and divided in float32; ``gather`` brings the result, cast
    to the rows' dtype, to everyone. All ranks decode the same bytes, so all end with the same numbers. What every rank
    knows already (`Reduced.shared`) is not sent again. Both ways may have error feedback; on the way back the rank that
    sums a row keeps what its message left out.
    """
    reduced: Reduced = yield from reduce.reduce_scatter(rows, state)
    mine = (reduced.total / divisor).to(rows.dtype)
    everything = state.scratch("gathered", tuple(rows.shape), rows.dtype, rows.device)
    if reduced.shared is None:
        back = state.child("gather", state.segments)
        back.output = everything
        return (yield from gather.all_gather(mine, back))
    put_columns((reduced.shared.totals() / divisor).to(rows.dtype), reduced.shared.ranges, everything)
    if others := other_columns(reduced.shared.ranges, rows.shape[1]):
        # other rows than above: a warm-up may send all of them first
        back = state.child("rest").child("gather", _segments_within(state.segments, others))
        gathered = yield from gather.all_gather(take_columns(mine, others), back)
        put_columns(gathered, others, everything)
    return everything


def _segments_within(segments: Sequence[Segment], ranges: Ranges) -> tuple[Segment, ...]:
    """Return which parameter lies where in the columns of ``ranges``; empty when one lies there in part."""
    inside = [s for s in segments if any(a <= s.start and s.stop <= b for a, b in ranges)]
    known = sum(s.stop - s.start for s in inside) == sum(b - a for a, b in ranges)
    return moved_together(inside) if known else ()


class GradientAllReduce:
    """Reduces gradients over a process group, in place.

    They are laid out as FSDP2 lays out a unit (`segments.flatten`: row d holds dim-0 chunk d of every one), whatever
    the caller's own buffer looks like: so every method works here that works there, those with matrices and
    layers included, at the price of a copy and of FSDP2's padding.
    ``op``: what the ledger calls it. ``rounds``: how it is done.
    """

    def __init__(
        self,
        state: State,
        reduce: Compressor,
        gather: Compressor | None,
        ledger: Ledger,
        workspaces: WorkspacePool,
        scale: LossScale | None = None,
        *,
        op: Op = "all_reduce",
        rounds: AllReduceRounds = all_reduce,
    ) -> None:
        self.scale = scale or LossScale()
        self.state, self.reduce, self.ledger, self.workspaces = state, reduce, ledger, workspaces
        self.gather = gather if gather is not None else UNCOMPRESSED
        self.op, self._rounds = op, rounds

    @spanned("all_reduce")
    def __call__(
        self,
        named: Sequence[tuple[str, Tensor]],
        unit: str,
        group: dist.ProcessGroup,
        divisor: float,
        goes_on: bool = False,
    ) -> None:
        """Every tensor (one dtype: fp32, bf16 or fp16) becomes its sum over ``group``, divided by ``divisor``.

        ``goes_on``: in the same optimizer step as the last call (`State.begin`).
        """
        self.begin(named, unit, group, divisor, goes_on).finish()

    def begin(
        self,
        named: Sequence[tuple[str, Tensor]],
        unit: str,
        group: dist.ProcessGroup,
        divisor: float,
        goes_on: bool = False,
    ) -> AllReduceUnderWay:
        """Send the first messages of what a call does; the rest is up to `AllReduceUnderWay`, before the next one."""
        tensors = [tensor.view(-1) if tensor.dim() == 0 else tensor for _, tensor in named]
        collective = Collective(tensors[0].device)
        start = collective.now()
        shapes = [(name, tuple(tensor.shape)) for (name, _), tensor in zip(named, tensors, strict=True)]
        self.state.segments = segments_of(shapes, group.size())
        rows = flatten(tensors, group.size())
        workspace = self.workspaces.acquire(rows.device)
        finite = self.reduce.mark(rows)
        self.scale.take_off(rows)
        self.state.begin(finite, workspace=workspace, goes_on=goes_on)
        collective.spent("encode", start)
        rounds = self._rounds(rows, self.reduce, self.gather, self.state, divisor)
        running = transport.Running(rounds, group, collective, workspace)
        return AllReduceUnderWay(self, unit, tensors, rows, running, collective, workspace)


class AllReduceUnderWay:
    """One all-reduce of `GradientAllReduce` whose messages are being sent, on gloo while the caller computes."""

    def __init__(
        self,
        reduction: GradientAllReduce,
        unit: str,
        tensors: Sequence[Tensor],
        rows: Tensor,
        running: transport.Running[Tensor],
        collective: Collective,
        workspace: Workspace,
    ) -> None:
        self._reduction, self._unit, self._tensors = reduction, unit, tensors
        self._elements, self._itemsize = 2 * rows[1:].numel(), rows.itemsize  # both halves
        self._running, self._collective, self._workspace = running, collective, workspace

    def advance(self) -> None:
        """Wait for the messages that are on their way, and send those of the next round, if there is one."""
        self._running.advance()

    def finish(self) -> None:
        """Take the remaining rounds; every tensor becomes its sum over the ranks, divided."""
        reduction, collective = self._reduction, self._collective
        everything = self._running.result()
        start = collective.now()
        state = reduction.state
        for tensor, result in zip(self._tensors, unflatten(everything, state.segments), strict=True):
            reduction.scale.put_on(tensor.copy_(result))
        state.end()
        reduction.workspaces.release(self._workspace)
        collective.spent("decode", start)
        reduction.ledger.add(reduction.op, self._unit, collective, self._elements, self._itemsize, state.finite)


def check(name: str, reduce: Compressor, gather: Compressor | None, ranks: int) -> None:
    """ValueError when these methods cannot make an all-reduce of gradients over ``ranks``; ``name``: the argument's."""
    if not reduce.traits.for_gradients:
        raise ValueError(f"{name}: {reduce.name} is for parameters (all_gather) only")
    _check_way_back(f"{name}'s gather" if name == "all_reduce" else "all_gather", gather)
    check_ranks(reduce, ranks)
    if gather is not None:
        check_ranks(gather, ranks)


def _check_way_back(name: str, gather: Compressor | None) -> None:
    """ValueError when ``gather`` cannot bring sums to every rank: what carries parameters can, and so can feedback."""
    if not isinstance(gather, ErrorFeedback):
        check_gather(name, gather, ', or one with error feedback ("topk feedback")')
    elif not gather.carries_means:
        raise ValueError(
            f"{name}: {gather.name} with error feedback does not send one message a row, which everyone could decode; "
            "use a method that does (int8, binned, ecsq, topk), or one for parameters without feedback"
        )


def check_gather(name: str, gather: Compressor | None, or_else: str = "") -> None:
    """ValueError when ``gather`` cannot bring the same values to every rank; ``or_else``: what else there is to do."""
    if gather is None:
        return
    if isinstance(gather, ErrorFeedback):
        raise ValueError(f"{name}: {gather.name} with error_feedback is for gradients only")
    if not gather.traits.for_parameters:
        raise ValueError(
            f"{name}: {gather.name} with these settings does not bring every element back the same at every gather; "
            f"use a deterministic dense method (identity, bf16, fp16, fp8, int8, int4, delta){or_else}"
        )


def check_ranks(compressor: Compressor, ranks: int) -> None:
    """ValueError when ``compressor`` is not defined for so many."""
    if compressor.traits.max_ranks is not None and ranks > compressor.traits.max_ranks:
        raise ValueError(
            f"{compressor.name} is defined for at most {compressor.traits.max_ranks} ranks, this unit has {ranks}"
        )
