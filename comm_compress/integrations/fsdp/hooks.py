"""FSDP2's communication contracts, kept with compressors: what `fsdp.attach` installs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from comm_compress.core.compressor import Compressor
from comm_compress.core.ledger import Collective, Ledger
from comm_compress.core.rounds import AllGatherRounds
from comm_compress.core.segments import Ranges, Segment, moved_together, segments_of, take_columns
from comm_compress.core.state import State
from comm_compress.core.tracing import span, spanned
from comm_compress.core.workspace import Workspace, WorkspacePool
from comm_compress.drive import transport
from comm_compress.drive.comparison import Comparisons
from comm_compress.integrations.allreduce import GradientAllReduce
from comm_compress.integrations.fsdp import _compat
from comm_compress.integrations.fsdp.backward import Backward
from comm_compress.integrations.fsdp.frozen import Column, FrozenReplicas
from comm_compress.integrations.fsdp.overlap import Reductions
from comm_compress.integrations.loss_scale import LossScale
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.wrappers.replicas import ReplicasApart, apart


class Unit(NamedTuple):
    """One parameter group of one FSDP2 module: what one collective carries."""

    name: str
    group: Any
    parameters: list[tuple[str, Any]]
    meshes: _compat.Meshes
    backward: Backward | None = None  # where gradients pass our hooks
    part_of: Mapping[str, str] = {}
    """Of plain parameters that are part of a larger one: which part, as `_compat.held` says of a DTensor."""

    @property
    def held(self) -> dict[str, str]:
        """Which part of each parameter this rank's FSDP2 group holds; empty: all of it."""
        return {name: self.part_of.get(name) or _compat.held(p) for name, p in self.parameters}

    def apart(self, method: Compressor) -> Compressor:
        """Return ``method`` for this unit: replicated parameters apart from those that tensor parallelism shards."""
        return apart(method, self.held)

    def state(self, op: str, seed: int) -> State:
        """The state of one operation; no two ranks and no two hops share a stream of random numbers, but for what is
        equal on several ranks of tensor parallelism."""
        shard, replicas = self.meshes.shard, self.meshes.replicas
        replica = replicas.rank() if replicas is not None else 0
        if "" not in (held := set(self.held.values())):  # nothing here has replicas
            seed += int.from_bytes(",".join(sorted(held)).encode(), "big") << 64
        if op == "all_reduce":
            assert replicas is not None
            seed += shard.rank() << 32
            n = _compat.sharded_numel(_compat.trainable(self.parameters))
            segments = segments_of(self.pieces(n), replicas.size())
            return State(f"{self.name}/all_reduce", replica, replicas.size(), seed, segments, lasting=False)
        gathers = op == "all_gather"
        segments = _compat.segments(self.parameters if gathers else _compat.trainable(self.parameters), shard.size())
        return State(self.name, shard.rank(), shard.size(), seed + (replica << 32), segments, lasting=gathers)

    def master(self, row: Tensor) -> Callable[[], Tensor] | None:
        """Return what reads the float32 values that ``row`` was rounded from; None when it was not rounded."""
        shards = _compat.masters(self.group)
        if sum(shard.numel() for shard in shards) != row.numel() or not shards:
            return None
        return lambda: torch.cat([shard.to(row.device, non_blocking=True) for shard in shards])

    def columns(self, n: int, ranks: int) -> list[Column]:
        """The parameters in the rows ``[n]`` of an all-gather among ``ranks`` (k, in backward after resharding to k).

        Raises ValueError when rows are not made of their shards.
        """
        times = self.meshes.shard.size() // ranks
        columns = [
            Column(name, times * p.padded_sharded_param_size.numel(), not p.sharded_param.requires_grad)
            for name, p in self.parameters
        ]
        if sum(column.width for column in columns) != n:
            raise ValueError(f"unit {self.name!r} does not gather its shards as they are: attach without keep_frozen")
        return columns

    def gathered_segments(self, keep_frozen: bool) -> tuple[Segment, ...]:
        """Return where each parameter lies in what a method gathers: all, or those that are trainable now."""
        segments = _compat.segments(self.parameters, self.meshes.shard.size())
        names = {name for name, _ in (_compat.trainable(self.parameters) if keep_frozen else self.parameters)}
        return moved_together([s for s in segments if s.name in names])

    def gradient_segments(self, n: int) -> tuple[Segment, ...]:
        """Return where each parameter lies in gradient rows of ``n``; empty when that cannot be known."""
        reduced = _compat.trainable(self.parameters) if self.backward is None else self.backward.reduced
        segments = _compat.segments(reduced, self.meshes.shard.size())
        return segments if segments and segments[-1].stop == n else ()

    def pieces(self, n: int) -> list[tuple[str, tuple[int, ...]]]:
        """Return (name, shape) of the chunk of each parameter that a rank's row of ``n`` reduced gradients holds."""
        chunks = [(s.name, s.stop - s.start, s.shape[1:]) for s in self.gradient_segments(n)]
        return [(name, (size // math.prod(shape), *shape)) for name, size, shape in chunks] or [(self.name, (n,))]


class _StepOfReductions:
    """Remembers in which optimizer step a unit's last reduction was."""

    def __init__(self, unit: Unit | None) -> None:
        self._unit, self._step = unit, -1

    def goes_on(self) -> bool:
        """Does the reduction that begins now belong to the step of the last one? To be asked once a reduction."""
        backward = self._unit.backward if self._unit is not None else None
        before, self._step = self._step, backward.step if backward is not None else -1
        return before == self._step != -1


class Comm:
    """The base of both hooks: plain allocation, and one compressor's state for one unit."""

    def __init__(
        self,
        state: State,
        compressor: Compressor,
        ledger: Ledger,
        workspaces: WorkspacePool | None = None,
        unit: Unit | None = None,
        scale: LossScale | None = None,
    ) -> None:
        self.scale = scale or LossScale()
        self.state, self.compressor, self.ledger, self.unit = state, compressor, ledger, unit
        self._steps = _StepOfReductions(unit)
        self.workspaces = workspaces or WorkspacePool()

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a collective's input or output for FSDP2."""
        return torch.empty(*size, dtype=dtype, device=device)


class CompressedReduceScatter(Comm):
    """FSDP2's ReduceScatter contract: sums row d of every rank's ``[W, n]`` input at rank d."""

    comparisons: Comparisons | None = None

    @spanned("reduce_scatter")
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """``input_tensor`` ``[W * n]``, rank-major, overwritten when not finite; ``output_tensor`` ``[n]``."""
        assert op == dist.ReduceOp.SUM, "attach() asks FSDP2 for undivided sums"
        rows = input_tensor.view(group.size(), -1)
        collective = Collective(input_tensor.device)
        start = collective.now()
        if self.unit is not None:
            self.state.segments = self.unit.gradient_segments(rows.shape[1])
        require_segments(self.compressor, self.state)
        workspace = self.workspaces.acquire(rows.device, 0 if rows.is_cuda else rows.nbytes)
        finite = self.compressor.mark(rows)
        self.scale.take_off(rows)
        self.state.begin(finite, output_tensor, workspace, self._steps.goes_on())
        collective.spent("encode", start)
        rounds = self.compressor.reduce_scatter(rows, self.state)
        backward = self._backward_that_goes_on()
        running = transport.Running(rounds, group, collective, workspace, lengths_ahead=backward is not None)
        compare = None if self.comparisons is None else partial(self._compare, rows, output_tensor, group)
        elements, itemsize = rows[1:].numel(), rows.itemsize

        def finish(divisor: float | None = None) -> None:
            reduced = running.result()
            start = collective.now()
            _bring(reduced.total, output_tensor)
            collective.spent("decode", start)
            if compare is not None:
                compare(reduced.sent)
            self.scale.put_on(output_tensor)
            self.state.end()
            self.workspaces.release(workspace)
            self.ledger.add("reduce_scatter", self.state.unit, collective, elements, itemsize, self.state.finite)
            if divisor is not None and divisor != 1:
                output_tensor.div_(divisor)

        if backward is None:
            finish()
            return
        assert backward.reductions is not None
        later = _in_span(f"reduce_scatter ({self.state.unit})", partial(finish, backward.divisor))
        backward.reductions.send_later(running.send_rows)
        backward.reductions.add(later)
        if self.comparisons is not None:  # torch's own collective runs beside it
            backward.reductions.finish()

    def _backward_that_goes_on(self) -> Backward | None:
        """Return what finishes the reduction that begins now, if FSDP2 may go on before; None: it needs the sum."""
        backward = self.unit.backward if self.unit is not None else None
        return None if backward is None or backward.divisor is None else backward

    def _compare(self, rows: Tensor, output: Tensor, group: dist.ProcessGroup, sent: Any) -> None:
        assert self.comparisons is not None
        exact = partial(transport.exact_sum, rows, group)
        self.comparisons.add(rows, output, exact, self.compressor, sent, self.state)


class CompressedAllGather(Comm):
    """FSDP2's AllGather contract. Every rank, the owner included, ends with the decoded row.

    ``frozen``: keeps the frozen parameters after they were sent once; the method then carries the others alone.
    """

    exact = False
    frozen: FrozenReplicas | None = None
    _trainable: set[str] | None = None

    @spanned("all_gather")
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """``input_tensor`` ``[n]``, a view of this rank's place in ``output_tensor`` ``[W * n]``.

        ``async_op`` on a CPU: only encode and begin to send; whoever needs the rows waits for the answer and decodes.
        """
        if not input_tensor.is_floating_point():
            raise ValueError(
                f"unit {self.state.unit!r} gathers {input_tensor.dtype} bytes (parameters of several dtypes, or a "
                "tensor subclass with its own all-gather): no codec can carry them; attach without all_gather"
            )
        # reshard_after_forward=k: backward gathers, from k ranks, what forward decoded; rounded again, the weights of
        # backward would be others than those of forward
        again = group.size() != self.state.world
        compressor, state = self.compressor, self.state
        if self.exact or again:
            compressor, state = UNCOMPRESSED, State(self.state.unit, group.rank(), group.size())
        size = 0 if input_tensor.is_cuda else output_tensor.nbytes
        collective, workspace = Collective(input_tensor.device), self.workspaces.acquire(input_tensor.device, size)
        master = None if self.unit is None or again else self.unit.master(input_tensor)
        rounds, sends_frozen = self._rounds(compressor, input_tensor, state, output_tensor, workspace, master)
        counted = not self.exact or sends_frozen
        async_op = async_op and not input_tensor.is_cuda
        behind = self._reductions_under_way() if async_op else None
        running = transport.Running(rounds, group, collective, workspace, lengths_ahead=behind is not None)
        if behind is not None:
            behind.send_later(running.send_rows)

        def finish() -> None:
            gathered = running.result()
            start = collective.now()
            _bring(gathered, output_tensor)
            state.end()
            self.workspaces.release(workspace)
            collective.spent("decode", start)
            if counted:
                elements = input_tensor.numel() * (group.size() - 1)
                self.ledger.add("all_gather", state.unit, collective, elements, input_tensor.itemsize, None)

        if async_op:
            return _UnderWay(_in_span(f"all_gather ({state.unit})", finish))
        finish()
        return None

    def _reductions_under_way(self) -> Reductions | None:
        """Return the reductions whose messages go before what is sent now: not to wait behind them for lengths."""
        backward = None if self.unit is None else self.unit.backward
        reductions = None if backward is None else backward.reductions
        return reductions if reductions is not None and reductions.are_under_way else None

    def _rounds(
        self,
        compressor: Compressor,
        row: Tensor,
        state: State,
        output: Tensor,
        workspace: Workspace,
        master: Callable[[], Tensor] | None,
    ) -> tuple[AllGatherRounds, bool]:
        """The rounds of one all-gather, and whether they send frozen parameters for every later one too."""
        columns: list[Column] = []
        missing = False
        if self.frozen is not None and self.unit is not None:
            columns = self.unit.columns(row.numel(), state.world)
            missing = bool(self.frozen.missing(columns, row.dtype))
            if state is self.state:
                self._follow_trainable(columns)
        keeps = any(column.frozen for column in columns)
        state.begin(output=None if keeps else output, workspace=workspace)
        state.master = master
        if self.frozen is None or not keeps:
            return compressor.all_gather(row, state), False
        if missing and self.unit is not None and state.world != self.unit.meshes.shard.size():
            return compressor.all_gather(row, state), False  # rows among fewer ranks are not what is kept

        def rest(ranges: Ranges) -> AllGatherRounds:
            if master is not None:
                state.master = lambda: take_columns(master(), ranges)
            return compressor.all_gather(take_columns(row, ranges), state)

        return self.frozen.all_gather(row, columns, rest, state), missing

    def _follow_trainable(self, columns: Sequence[Column]) -> None:
        """Let the method's state begin afresh when other parameters than before are trainable."""
        assert self.unit is not None
        names = {column.name for column in columns if not column.frozen}
        if names != self._trainable:
            if self._trainable is not None:
                self.state.load_state_dict({"tick": torch.tensor(self.state.tick)})
            self.state.segments = self.unit.gathered_segments(keep_frozen=True)
            self._trainable = names


def _in_span(name: str, finish: Callable[[], None]) -> Callable[[], None]:
    def inside() -> None:
        with span(name):
            finish()

    return inside


class _UnderWay(dist.Work):  # type: ignore[misc]
    """An all-gather that has begun: FSDP2 waits for it before it uses the gathered parameters."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: Any = None) -> bool:
        """Receive and decode, the first time that FSDP2 asks."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True


def _bring(result: Tensor, output: Tensor) -> None:
    """Copy ``result`` to ``output``, unless it was written there."""
    if result.data_ptr() != output.data_ptr():
        output.view_as(result).copy_(result)


class CompressedAllReduce:
    """FSDP2's all-reduce hook on HSDP: sums this rank's reduced shard over its replicas.

    FSDP2 first all-reduces the shard itself, with a collective that no hook replaces. `attach` gives it a group of
    this rank alone to do that in, so that it keeps its streams, its buffers and ``set_requires_all_reduce`` (a
    partial sum waits, this hook is not called), and the real reduction happens here. FSDP2 then divides
    by the size of the groups it knows, the shard's; so the replicas' part of the mean is taken here, unless the user
    has set a divide factor, which stands for all of it.
    """

    def __init__(self, unit: Unit, reduction: GradientAllReduce) -> None:
        self.unit, self.reduction, self._steps = unit, reduction, _StepOfReductions(unit)

    def __call__(self, reduce_output: Tensor) -> None:
        """Sum ``reduce_output`` ``[n]`` over the replicas, in place."""
        replicas = self.unit.meshes.replicas
        assert replicas is not None
        if replicas.size() == 1:
            return
        if not self.unit.gradient_segments(reduce_output.numel()):
            require_segments(self.reduction.reduce, State(self.unit.name))
        pieces = self.unit.pieces(reduce_output.numel())
        parts = torch.split(reduce_output, [math.prod(shape) for _, shape in pieces])
        named = [(name, part.view(shape)) for (name, shape), part in zip(pieces, parts, strict=True)]
        divisor = replicas.size() if self.unit.group.gradient_divide_factor is None else 1
        self.reduction(named, self.unit.name, replicas, divisor, self._steps.goes_on())


def require_segments(compressor: Compressor, state: State) -> None:
    """ValueError when ``compressor`` needs to know which parameter lies where, and ``state`` does not say."""
    if compressor.traits.needs_segments and not state.segments:
        if isinstance(compressor, ReplicasApart):
            raise ValueError(
                f"{compressor.name}: unit {state.unit!r} mixes parameters that tensor parallelism shards with ones "
                "that it replicates, and does not show which lies where in its rows (it is not sharded over dim 0): "
                "call fully_shard on the replicated ones' "
                "modules too, or use identity"
            )
        raise ValueError(
            f"{compressor.name}: unit {state.unit!r} does not show which parameter lies where in its rows: it is not "
            "sharded over dim 0; use a method without matrices or layers"
        )
