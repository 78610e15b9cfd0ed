"""The collectives of torch.distributed itself on gloo: which call caused which transfer, and how many bytes it sent."""

from __future__ import annotations

from typing import NamedTuple

from fsdp_lab.trace.reading.activity import Call
from fsdp_lab.trace.reading.chrome import Span, Trace
from fsdp_lab.trace.reading.labels import Threads
from fsdp_lab.trace.reading.traffic import input_dims, itemsize, necessary


class _Kind(NamedTuple):
    op: str
    transfers: tuple[str, ...]  # gloo names the algorithm: a reduce-scatter is an all-reduce


_REDUCE_SCATTER = _Kind("reduce_scatter", ("gloo:all_reduce", "gloo:reduce_scatter"))
_ALL_GATHER = _Kind("all_gather", ("gloo:all_gather",))
_ALL_REDUCE = _Kind("all_reduce", ("gloo:all_reduce",))
_ALL_TO_ALL = _Kind("all_to_all", ("gloo:all_to_all",))
_KINDS = {
    "c10d::_reduce_scatter_base_": _REDUCE_SCATTER,
    "c10d::reduce_scatter_": _REDUCE_SCATTER,
    "c10d::reduce_scatter_tensor_coalesced_": _REDUCE_SCATTER,
    "c10d::_allgather_base_": _ALL_GATHER,
    "c10d::allgather_": _ALL_GATHER,
    "c10d::allgather_into_tensor_coalesced_": _ALL_GATHER,
    "c10d::allreduce_": _ALL_REDUCE,
    "c10d::allreduce_coalesced_": _ALL_REDUCE,
    "c10d::alltoall_base_": _ALL_TO_ALL,
    "c10d::alltoall_": _ALL_TO_ALL,
}


def gloo_calls(trace: Trace, threads: Threads) -> tuple[list[Call], dict[int, str]]:
    """All stock calls, and the operation of each transfer that one of them caused, by its index in ``trace.spans``.

    A call's transfer is the first one after it, of its kind and size, that belongs to no earlier call.
    """
    calls: list[Call] = []
    op_of: dict[int, str] = {}
    transfers = [(i, span) for i, span in enumerate(trace.spans) if span.name.startswith("gloo:")]
    for call in trace.spans:
        kind = _KINDS.get(call.name)
        if kind is None or threads.at(call.thread, call.start).op is not None:  # part of a compressed collective
            continue
        for i, transfer in transfers:
            if i not in op_of and _fits(kind, call, transfer):
                op_of[i] = kind.op
                raw = _bytes(kind.op, call, transfer, trace.world)
                twice = 2 if kind.op == "reduce_scatter" and transfer.name == "gloo:all_reduce" else 1
                calls.append(Call(kind.op, call.start, raw, None if raw is None else raw * twice))
                break
        else:
            calls.append(Call(kind.op, call.start, None, None))
    return calls, op_of


def _fits(kind: _Kind, call: Span, transfer: Span) -> bool:
    if transfer.name not in kind.transfers or transfer.start < call.start:
        return False
    theirs = input_dims(transfer.args)[:1]
    return not theirs or theirs[0] in input_dims(call.args)[:2]


def _bytes(op: str, call: Span, transfer: Span, world: int) -> int | None:
    numel, dtypes = input_dims(transfer.args)[:1], transfer.args.get("Input type", ())[:1]
    size = itemsize(dtypes[0]) if dtypes else None
    if not numel or size is None:
        return None
    whole = [n for n in input_dims(call.args)[:2] if n]
    if call.name.endswith("_base_") and op != "all_to_all" and len(whole) == 2:  # a group may be smaller than the world
        world = max(whole) // min(whole)
    return necessary(op, numel[0], size, world)
