"""Bytes of collectives: stated by the spans of comm_compress, or computed from shapes and dtypes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from fsdp_lab.trace.reading.activity import Call
from fsdp_lab.trace.reading.chrome import Trace

_SENT = re.compile(r"comm_compress::sent \((\w+) of .*: (\d+) B raw, (\d+) B sent\)")
_ITEMSIZE = {
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("bfloat16", "half", "float16", "short"), 2),
    **dict.fromkeys(("double", "long int", "long", "int64", "float64"), 8),
    **dict.fromkeys(("unsigned char", "signed char", "byte", "char", "uint8", "int8", "bool"), 1),
}


def sent_marks(trace: Trace) -> list[Call]:
    """All collectives of comm_compress, whose spans state their bytes."""
    matches = ((span, _SENT.fullmatch(span.name)) for span in trace.spans)
    return [Call(m[1], span.start, int(m[2]), int(m[3])) for span, m in matches if m]


def itemsize(dtype: str) -> int | None:
    """Bytes per element of a dtype, named as in traces (float, c10::BFloat16, Half...); None if it is unknown."""
    return _ITEMSIZE.get(dtype.rpartition("::")[2].lower())


def necessary(op: str, numel: int, size: int, world: int) -> int:
    """Bytes that a rank must send in a collective whose input has ``numel`` elements of ``size`` bytes."""
    if op == "all_gather":
        return (world - 1) * numel * size
    if op == "all_reduce":  # a ring
        return 2 * (world - 1) * math.ceil(numel * size / world)
    return (world - 1) * numel * size // world


def shape_numel(dims: Any) -> int:
    """The number of elements of a tensor, or of a list of tensors, from the profiler's `Input Dims` entry."""
    if dims and isinstance(dims[0], list):
        return sum(shape_numel(one) for one in dims)
    return math.prod(dims)


def input_dims(args: Mapping[str, Any]) -> list[int]:
    """The number of elements of each argument of an operator."""
    return [shape_numel(dims) for dims in args.get("Input Dims", ())]
