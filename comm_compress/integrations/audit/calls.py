"""Which operators of torch are collectives, and what one call of them moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from comm_compress.drive.wire_bytes import Moved, gloo_bytes, ring_bytes

# Operators by the beginning of their names, without leading underscores; the first that fits. `wait_tensor` and
# `wrap_tensor_autograd` move nothing.
_KINDS = (
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("reduce_scatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("all_to_all", "all_to_all"),
    ("shard_dim_alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("reduce_", "reduce"),
    ("gather_", "gather"),
    ("scatter_", "scatter"),
    ("send", "send"),
    ("isend", "send"),
    ("recv", "recv"),
    ("irecv", "recv"),
    ("barrier", "barrier"),
)
_NO_TRAFFIC = ("wait_tensor", "wrap_tensor_autograd", "check_for_nan")
# c10d's own come from a process group's methods and from the C++ reducer of DDP; the functional ones from DTensor and
# compiled code. Symmetric memory's kernels move bytes in a way that is not known here: they are named, not counted.
_NAMESPACES = ("c10d", "_c10d_functional", "_dtensor", "symm_mem")
# where the tensors stand that a rank hands over
_INPUTS = ("input_tensor", "input_tensors", "input_list", "inputs", "input", "tensors", "tensor")


class Call(NamedTuple):
    """What one call moves, as this rank sees it. Bytes: ``payload`` is handed over by this rank, ``sent`` what its
    group's backend sends of that to other ranks, ``ring`` what a ring would."""

    op: str
    group: str
    dtype: str
    payload: int
    sent: int
    ring: int


def is_communication(operator: Any) -> bool:
    """Does the operator speak to other ranks?"""
    namespace = getattr(operator, "namespace", "")
    return namespace in _NAMESPACES and _bare(operator) not in _NO_TRAFFIC


def read(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call | None:
    """What the call moves; None when the operator is of a kind that nobody here can count."""
    op = next((op for beginning, op in _KINDS if _bare(operator).startswith(beginning)), None)
    given = _arguments(operator, args, kwargs)
    group = _group(given)
    if op is None or group is None or operator.namespace == "symm_mem":
        return None
    inputs = next((given[name] for name in _INPUTS if name in given), ())
    tensors = list(_tensors(inputs))
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return None
    size = 0 if op in ("recv", "barrier") else sum(tensor.nbytes for tensor in tensors)
    rank = group.rank()
    moved = Moved(op, size, group.size(), rank, _own(op, given, tensors, rank, group.size()), _root(given))
    gloo = group.name() == "gloo"
    sent = gloo_bytes(moved) if gloo else ring_bytes(moved)
    dtype = "-" if op == "barrier" else _dtype(tensors)  # a barrier's tensor only says which device it is about
    return Call(op, _label(group), dtype, size, sent, ring_bytes(moved))


def _bare(operator: Any) -> str:
    return str(operator.name()).partition("::")[2].partition(".")[0].lstrip("_")


def _arguments(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in operator._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _group(given: dict[str, Any]) -> dist.ProcessGroup | None:
    group = given.get("process_group", given.get("group_name"))
    if isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)
    elif group is not None and not isinstance(group, dist.ProcessGroup):
        group = dist.ProcessGroup.unbox(group)
    return group


def _label(group: dist.ProcessGroup) -> str:
    ranks = dist.get_process_group_ranks(group)
    return f"{group.group_desc or 'group'} {_ranges(ranks)}"


def _ranges(ranks: Sequence[int]) -> str:
    """[0, 1, 2] as 0-2, and others one by one."""
    consecutive = len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
    return f"{ranks[0]}-{ranks[-1]}" if consecutive else ",".join(map(str, ranks))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in a value of nested lists and tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _own(op: str, given: dict[str, Any], tensors: Sequence[Tensor], rank: int, world: int) -> int:
    """The bytes that a rank hands over for itself."""
    if op not in ("all_to_all", "scatter") or not tensors:
        return 0
    if len(tensors) > 1:
        return tensors[rank].nbytes
    splits = given.get("input_split_sizes")
    if not splits:
        return tensors[0].nbytes // world
    return tensors[0].nbytes * int(splits[rank]) // max(1, sum(map(int, splits)))


def _root(given: dict[str, Any]) -> int:
    return int(given.get("root_rank", given.get("src", 0)))


def _dtype(tensors: Sequence[Tensor]) -> str:
    return "+".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})) or "-"
