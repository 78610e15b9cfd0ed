"""Fields that are computed from other fields of the same row, such as a ratio of two byte counts.

The trainer fills them in, the validator computes them again and refuses a row that says otherwise, and migration gives
them to older rows.
"""

from collections.abc import Mapping
from typing import Any

FP32, BF16 = 4, 2  # bytes per element


def derived(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Ratios, bandwidths, times per step and MFU; None where the row lacks what they need, or a denominator is zero."""
    steps, milliseconds = _number(row, "steps"), _number(row, "comm_time_ms_total")
    raw, sent = _number(row, "bytes_raw_total"), _number(row, "bytes_compressed_total")
    raw_gradients, sent_gradients, gradients = (
        _number(row.get(name), "reduce_scatter")
        for name in ("bytes_raw_by_op", "bytes_compressed_by_op", "elements_by_op")
    )
    parameters = _number(row.get("elements_by_op"), "all_gather")
    elements = None if gradients is None or parameters is None else gradients + parameters
    flops = _product(_number(row, "tokens_per_s"), _number(row, "flops_per_token"))
    return {
        "mfu": _over(flops, _product(_number(row, "world_size"), _number(row, "peak_flops"))),
        "outer_bits": _outer_bits(row),
        "compress_time_ms": _over(_number(row, "compress_time_ms_total"), steps),
        "decompress_time_ms": _over(_number(row, "decompress_time_ms_total"), steps),
        "extra_collective_time_ms": _over(_number(row, "extra_collectives_time_ms_total"), steps),
        "effective_bw_raw_gbps": _over(raw or None, milliseconds, 1e-6),
        "effective_bw_compressed_gbps": _over(sent or None, milliseconds, 1e-6),
        "compression_ratio": _over(raw, sent),
        "compression_ratio_reduce_scatter": _over(raw_gradients, sent_gradients),
        "compression_ratio_vs_fp32": _over(elements, sent, FP32),
        "compression_ratio_vs_bf16": _over(elements, sent, BF16),
        "compression_ratio_reduce_scatter_vs_fp32": _over(gradients, sent_gradients, FP32),
        "compression_ratio_reduce_scatter_vs_bf16": _over(gradients, sent_gradients, BF16),
    }


def _outer_bits(row: Mapping[str, Any]) -> float | None:
    """Bits a parameter and optimizer step that replicas exchange, as `comm_compress.outer.bits` has them."""
    sent = _number(row.get("bytes_compressed_by_op"), "outer")
    replicas, world = _number(row, "dp_replicas") or _number(row, "virtual_ranks"), _number(row, "world_size")
    if sent is None or replicas is None or replicas < 2 or world is None:
        return None
    on_a_rank = _over(_product(_number(row, "trainable_parameters"), replicas), world)
    return _over(sent, _product(on_a_rank, _number(row, "steps")), 8 * replicas / (replicas - 1))


def _number(values: Any, name: str) -> float | None:
    value = values.get(name) if isinstance(values, Mapping) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _product(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a * b


def _over(value: float | None, divisor: float | None, factor: float = 1) -> float | None:
    return None if value is None or not divisor else factor * value / divisor
