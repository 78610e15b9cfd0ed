"""Numbers that follow from a row's counts. None where the row does not say, or the number has no meaning.

A measure is a function of a row; `over_seeds` summarises one over an arm's runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from analysis.rows.comparing.comparisons import ArmRuns
from analysis.rows.reading import is_number
from analysis.statistics.intervals import Summary, mean, summary

Measure = Callable[[Mapping[str, Any]], float | None]
DIRECTIONS = ("reduce_scatter", "all_gather")
ACTIVATIONS = ("activations", "activation_gradients")
FP32_BYTES, BF16_BYTES = 4, 2


def sent_bytes(row: Mapping[str, Any], direction: str | None = None) -> float | None:
    """Bytes that a rank sends in a step, in one direction (``reduce_scatter``, ``all_gather``) or all."""
    by_op = row.get("bytes_compressed_by_op")
    total = row.get("bytes_compressed_total") if direction is None else (by_op or {}).get(direction)
    return _over(total, row.get("steps"))


def bits_per_parameter(row: Mapping[str, Any], direction: str | None = None) -> float | None:
    """Bits a parameter and step: 8 x bytes that a rank sends / parameters x W / (W - 1).

    The last factor is there because a rank keeps its own part to itself: an uncompressed float32 reduce-scatter has
    32 bits at any W. All traffic of FSDP2, which gathers parameters twice, is about 64 bits with float32 gradients and
    bf16 parameters. None with one rank."""
    world, sent = row.get("world_size"), sent_bytes(row, direction)
    if sent is None or not isinstance(world, int) or world < 2:
        return None
    a_parameter = _over(sent, row.get("num_parameters"))
    return None if a_parameter is None else 8 * a_parameter * world / (world - 1)


def bits_per_activation(row: Mapping[str, Any]) -> float | None:
    """Bits a value of the activations, and of their gradients, that ranks of a divided model send: 8 x bytes / values.

    None where no activations are sent."""
    sent, elements = row.get("bytes_compressed_by_op") or {}, row.get("elements_by_op") or {}
    moved = [op for op in ACTIVATIONS if is_number(elements.get(op)) and is_number(sent.get(op))]
    bits = _over(sum(sent[op] for op in moved), sum(elements[op] for op in moved))
    return None if bits is None else 8 * bits


def bits(row: Mapping[str, Any]) -> float | None:
    """What an arm is placed by: bits a value of the activations where a model is divided, else a parameter and step."""
    of_activations = bits_per_activation(row)
    return bits_per_parameter(row) if of_activations is None else of_activations


def ratio(row: Mapping[str, Any], against: str = "fp32", direction: str | None = None) -> float | None:
    """Bytes of the same elements in ``against`` (fp32, bf16) over the bytes sent. None when nothing was sent."""
    elements = row.get("elements_by_op") or {}
    is_divided = any(op in elements for op in ACTIVATIONS)
    needed = DIRECTIONS if direction is None and not is_divided else [direction] if direction is not None else []
    if not elements or not all(is_number(elements.get(op)) for op in (*needed, *elements)):
        return None
    size = {"fp32": FP32_BYTES, "bf16": BF16_BYTES}[against]
    counted = sum(elements.values()) if direction is None else elements[direction]
    by_op = row.get("bytes_compressed_by_op") or {}
    sent = row.get("bytes_compressed_total") if direction is None else by_op.get(direction)
    return _over(size * counted, sent)


def gradient_ratio(row: Mapping[str, Any]) -> float | None:
    """How many times fewer bytes the reduce-scatter sent than in float32."""
    return ratio(row, "fp32", "reduce_scatter")


def ratio_vs_fp32(row: Mapping[str, Any]) -> float | None:
    """How many times fewer bytes all traffic was than in float32."""
    return ratio(row, "fp32")


def ratio_vs_bf16(row: Mapping[str, Any]) -> float | None:
    """How many times fewer bytes all traffic was than in bf16."""
    return ratio(row, "bf16")


def column(name: str) -> Measure:
    """The measure that is a column of the row: ``tokens_per_s``, ``comm_ratio``, ``val_ppl``."""

    def read(row: Mapping[str, Any]) -> float | None:
        value = row.get(name)
        return float(value) if is_number(value) else None

    return read


def over_seeds(runs: ArmRuns, measure: Measure) -> Summary | None:
    """The measure summarised over the runs that ended well and have it: a failed run has no bytes and no times.

    Not for quality, where a failed run counts: see `intervals`."""
    values = _known(runs, measure)
    return summary(values) if values else None


def mean_over_seeds(runs: ArmRuns, measure: Measure) -> float | None:
    """The mean of `over_seeds` alone; None where no run has the measure."""
    values = _known(runs, measure)
    return mean(values) if values else None


def _known(runs: ArmRuns, measure: Measure) -> list[float]:
    return [value for row in runs.ended_well if (value := measure(row)) is not None]


def _over(value: Any, divisor: Any) -> float | None:
    return value / divisor if is_number(value) and is_number(divisor) and divisor else None
