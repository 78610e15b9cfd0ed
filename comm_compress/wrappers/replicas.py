"""Parameters that tensor parallelism replicates, apart from those that it shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from comm_compress.core import nonfinite
from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.segments import Segment
from comm_compress.core.state import State
from comm_compress.core.traits import combine
from comm_compress.wrappers.parts import InParts, Part


class ReplicasApart(InParts):
    """One method over parameters that differ in which ranks hold replicas of them, each kind coded by itself.

    On a mesh of tensor parallelism (TP) x FSDP2, a unit's row on TP rank t holds t's slices of some weight matrices
    beside whole norms and biases, which all TP ranks hold. Those ranks compute the same gradients of the latter, and
    stock FSDP2 keeps the copies equal. A method that looks at a row as a whole (a threshold, a scale for neighbours, a
    rotation, matrices with a common budget, error feedback of all this) would make of the same gradient something else
    on each TP rank. Coded apart, the replicated columns, their state, their random numbers and whether they are finite
    are the same on all TP ranks, so their sums are the same bit for bit.

    ``holders``: for each parameter's name the part of it that this rank holds, as "tp=1" or, of all of it, "".
    Parameters with equal values go together. The value is part of the child state's name: the sharded parameters of
    different TP ranks draw different random numbers.
    """

    def __init__(self, method: Compressor, holders: Mapping[str, str]) -> None:
        super().__init__()
        self.method, self.holders = method, dict(holders)
        self.name, self.settings = method.name, method.settings
        self.traits = replace(combine(method.traits), needs_segments=True)

    def mark(self, rows: Tensor) -> Tensor:
        """Look, but mark nothing: parts are marked one by one, or a NaN would reach the replicas' columns here."""
        return nonfinite.all_finite(rows)

    def _columns(self, part: Part, rows: Tensor, state: State) -> tuple[Tensor, State]:
        columns, child = super()._columns(part, rows, state)
        child.judge(part.method.mark(columns))
        return columns, child

    def _find_parts(self, n: int, segments: tuple[Segment, ...]) -> list[Part]:
        if n and not segments:
            raise ValueError(f"{self.name}: needs to know which parameters are replicated (State.segments)")
        held: dict[str, list[Segment]] = {}
        for segment in segments:
            held.setdefault(self.holders[segment.name], []).append(segment)
        return [Part.of(f"part:{held_by or 'whole'}", self.method, held[held_by]) for held_by in sorted(held)]


def apart(method: Compressor, holders: Mapping[str, str]) -> Compressor:
    """Return ``method``, with replicas apart where it matters: not where all are of one kind or rows go as they are."""
    plain = isinstance(method, Codec) and method.plain
    return method if plain or len(set(holders.values())) < 2 else ReplicasApart(method, holders)
