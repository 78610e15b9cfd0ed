"""Compressed collectives inside FSDP2: `attach` and the handle it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from comm_compress import transport
from comm_compress._compat import UNUSED_AS_ZEROS, param_groups, segments
from comm_compress.compressor import Compressor
from comm_compress.feedback import ErrorFeedback
from comm_compress.ledger import Collective, Ledger
from comm_compress.methods.identity import Identity, IdentityConfig
from comm_compress.state import State


class _Comm:
    """What both hooks share: plain allocation, and one compressor's state for one unit."""

    def __init__(self, state: State, compressor: Compressor, ledger: Ledger) -> None:
        self.state, self.compressor, self.ledger = state, compressor, ledger

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class CompressedReduceScatter(_Comm):
    """FSDP2's ReduceScatter contract: sums row d of every rank's ``[W, n]`` input at rank d."""

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
        self.state.begin(_mark_nonfinite(rows))
        collective.spent("encode", start)
        reduced = transport.run(self.compressor.reduce_scatter(rows, self.state), group, collective)
        start = collective.now()
        output_tensor.copy_(reduced.total)
        collective.spent("decode", start)
        elements = rows[1:].numel()
        self.ledger.add("reduce_scatter", self.state.unit, collective, elements, rows.itemsize, self.state.finite)


class CompressedAllGather(_Comm):
    """FSDP2's AllGather contract. Every rank, the owner included, ends with the decoded row."""

    def __init__(self, state: State, compressor: Compressor, ledger: Ledger) -> None:
        super().__init__(state, compressor, ledger)
        self.exact = False

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        """``input_tensor`` ``[n]``, a view of this rank's place in ``output_tensor`` ``[W * n]``."""
        if not input_tensor.is_floating_point():
            raise ValueError(
                f"unit {self.state.unit!r} gathers {input_tensor.dtype} bytes (parameters of several dtypes, or a "
                "tensor subclass with its own all-gather): a float codec cannot carry them; attach without all_gather"
            )
        collective = Collective(input_tensor.device)
        compressor = Identity(IdentityConfig()) if self.exact else self.compressor
        if not self.exact:
            self.state.begin()
        gathered = transport.run(compressor.all_gather(input_tensor, self.state), group, collective)
        start = collective.now()
        output_tensor.view_as(gathered).copy_(gathered)
        collective.spent("decode", start)
        if not self.exact:
            elements = input_tensor.numel() * (group.size() - 1)
            self.ledger.add("all_gather", self.state.unit, collective, elements, input_tensor.itemsize, None)


def _mark_nonfinite(rows: Tensor) -> Tensor:
    """Is all of ``rows`` finite (bool scalar)? If not, put a NaN in front of every row.

    Every rank receives one row from every rank, so that one NaN in one rank's gradient reaches all of
    them in the same collective, without another message.
    """
    if rows.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=rows.device)
    low, high = torch.aminmax(rows)
    finite = torch.isfinite(low) & torch.isfinite(high)
    rows[:, 0] = torch.where(finite, rows[:, 0], torch.nan)
    return finite


class Handle:
    """What `attach` installed: its ledger, its state, and the way out."""

    def __init__(self, reduce_scatter: Compressor | None, all_gather: Compressor | None) -> None:
        self.reduce_scatter, self.all_gather = reduce_scatter, all_gather
        self.ledger = Ledger()
        self._comms: dict[str, _Comm] = {}
        self._undo: list[tuple[Any, str, Any]] = []

    def rollback(self) -> None:
        """Take back what the last step did to every state. Call it when the optimizer step is skipped.

        Otherwise the states count the step as made, at the latest when each unit is next used.
        """
        for comm in self._comms.values():
            if isinstance(comm, CompressedReduceScatter):  # parameters were gathered in earnest
                comm.state.rollback()

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Inside, parameters are gathered uncompressed and nothing is entered in the ledger: for evaluation."""
        gathers = [c for c in self._comms.values() if isinstance(c, CompressedAllGather)]
        for comm in gathers:
            comm.exact = True
        try:
            yield
        finally:
            for comm in gathers:
                comm.exact = False

    @property
    def state_bytes(self) -> int:
        """Memory that residuals and other states hold on this rank."""
        return sum(comm.state.num_bytes for comm in self._comms.values())

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The states by "operation/unit", this rank's own. Call it between steps."""
        return {key: comm.state.state_dict() for key, comm in self._comms.items()}

    def load_state_dict(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put back what `state_dict` gave. Raises ValueError when the units differ."""
        if states.keys() != self._comms.keys():
            differing = ", ".join(sorted(states.keys() ^ self._comms.keys()))
            raise ValueError(f"compressor state is of another model or another method: units differ: {differing}")
        for key, comm in self._comms.items():
            comm.state.load_state_dict(states[key])

    def detach(self) -> None:
        """Give FSDP2 its own collectives back."""
        for target, attribute, value in reversed(self._undo):
            setattr(target, attribute, value)
        self._undo.clear()
        self._comms.clear()

    def _install(self, group: Any, attribute: str, comm: _Comm, key: str) -> None:
        self._undo.append((group, attribute, getattr(group, attribute)))
        setattr(group, attribute, comm)
        self._comms[key] = comm


def attach(
    model: nn.Module,
    *,
    reduce_scatter: Compressor | None = None,
    all_gather: Compressor | None = None,
    seed: int = 0,
) -> Handle:
    """Compress the collectives of every FSDP2 unit in ``model`` (call it after `fully_shard`).

    ``reduce_scatter`` carries gradients, ``all_gather`` parameters; None leaves that direction to FSDP2
    untouched. ``seed``: of the methods' own random numbers; no global generator is touched. FSDP2 is set
    to undivided sums, which it divides itself after the float32 sum.
    Raises ValueError when nothing is sharded, when a method cannot do what is asked of it, or when a
    unit is of a kind whose traffic would not all be compressed or counted.
    """
    units = _units(model)
    _check(units, reduce_scatter, all_gather)
    handle = Handle(reduce_scatter, all_gather)
    for name, module, group in units:
        if reduce_scatter is not None:
            hook = CompressedReduceScatter(_state(model, name, group, seed), reduce_scatter, handle.ledger)
            _require_segments(reduce_scatter, hook.state)
            handle._install(group, "_reduce_scatter_comm", hook, f"reduce_scatter/{name}")
            handle._undo.append((group, "force_sum_reduction_for_comms", group.force_sum_reduction_for_comms))
            module.set_force_sum_reduction_for_comms(True)
            if hasattr(group, UNUSED_AS_ZEROS):  # torch >= 2.13: rows keep their size when parameters get no gradient
                handle._undo.append((group, UNUSED_AS_ZEROS, getattr(group, UNUSED_AS_ZEROS)))
                setattr(group, UNUSED_AS_ZEROS, True)
        if all_gather is not None:
            gather = CompressedAllGather(_state(model, name, group, seed), all_gather, handle.ledger)
            _require_segments(all_gather, gather.state)
            handle._install(group, "_all_gather_comm", gather, f"all_gather/{name}")
    return handle


def _state(model: nn.Module, name: str, group: Any, seed: int) -> State:
    mesh = group.mesh_info.mesh
    return State(name, mesh.get_local_rank(), mesh.size(), seed, segments(model, group, mesh.size()))


def _require_segments(compressor: Compressor, state: State) -> None:
    if compressor.needs_segments and not state.segments:
        raise ValueError(
            f"{compressor.name}: unit {state.unit!r} is not sharded over dim 0, so its rows do not show which "
            "parameter lies where; shard over dim 0 or use a method without matrices or layers"
        )


def _units(model: nn.Module) -> list[tuple[str, FSDPModule, Any]]:
    """(name, module, parameter group) of every FSDP2 unit that has parameters of its own."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            groups = param_groups(module)
            if len(groups) > 1:
                raise ValueError(
                    f"unit {name or 'root'!r} has several parameter groups (per-parameter meshes): not supported"
                )
            found += [(name or "root", module, group) for group in groups]
    if not found:
        raise ValueError("attach: the model has no FSDP2 unit with parameters; call fully_shard on it first")
    return found


def _check(
    units: list[tuple[str, FSDPModule, Any]], reduce_scatter: Compressor | None, all_gather: Compressor | None
) -> None:
    if reduce_scatter is not None and not reduce_scatter.for_gradients:
        raise ValueError(f"reduce_scatter: {reduce_scatter.name} is for parameters (all_gather) only")
    if all_gather is not None and isinstance(all_gather, ErrorFeedback):
        raise ValueError(f"all_gather: {all_gather.name} with error_feedback is for gradients only")
    if all_gather is not None and not all_gather.for_parameters:
        raise ValueError(
            f"all_gather: {all_gather.name} with these settings does not bring every parameter back the same at every "
            "gather; use a deterministic dense method (identity, bf16, fp16, fp8, int8, int4, delta)"
        )
    for name, _, group in units:
        if group._is_hsdp:
            raise ValueError(
                f"unit {name!r} is sharded over a 2-D mesh (HSDP): its all-reduce between replicas would go "
                "uncompressed and uncounted; shard over a 1-D mesh"
            )
        for comm in (group._reduce_scatter_comm, group._all_gather_comm):
            if isinstance(comm, _Comm):
                raise ValueError(f"unit {name!r} already has compressed collectives; call detach() on the first handle")
        world = group.mesh_info.mesh.size()
        for compressor in (reduce_scatter, all_gather):
            if compressor is not None and compressor.max_ranks is not None and world > compressor.max_ranks:
                raise ValueError(
                    f"{compressor.name} is defined for at most {compressor.max_ranks} ranks, this unit has {world}"
                )
