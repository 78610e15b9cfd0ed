"""What a step's time is made of, and the bandwidth at which a method's codec costs what its bytes save.

Measures of a row (`analysis.statistics.measures`), in ms of a mean step; None where the row does not know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis.rows.comparing.comparisons import ArmRuns
from analysis.rows.reading import is_number
from analysis.statistics.measures import mean_over_seeds, sent_bytes

Row = Mapping[str, Any]


def encode_ms(row: Row) -> float | None:
    """Time in encoding; 0 where no method was used."""
    return _a_step(row, "compress_time_ms_total", without_hooks=0.0)


def decode_ms(row: Row) -> float | None:
    """Time in decoding; 0 where no method was used."""
    return _a_step(row, "decompress_time_ms_total", without_hooks=0.0)


def wire_ms(row: Row) -> float | None:
    """Time in collectives, including the wait for slower ranks (except for `none`, whose times are from a profile)."""
    return _a_step(row, "comm_time_ms_total")


def rest_ms(row: Row) -> float | None:
    """Time that is not communication: forward, backward and optimizer."""
    parts, step = (wire_ms(row), encode_ms(row), decode_ms(row)), row.get("step_time_ms_mean")
    known = [part for part in parts if part is not None]
    return max(step - math.fsum(known), 0.0) if is_number(step) and len(known) == len(parts) else None


def codec_share(row: Row) -> float | None:
    """Encoding and decoding as a share of the step's time, 0 to 1."""
    encode, decode, step = encode_ms(row), decode_ms(row), row.get("step_time_ms_mean")
    return None if encode is None or decode is None or not is_number(step) or not step else (encode + decode) / step


def break_even(runs: ArmRuns, base: ArmRuns) -> float | None:
    """The bit/s below which the bytes saved would take longer to send than saving them takes.

        8 (bytes of base - bytes) / (codec and further rounds, less those of base)

    all of a rank's step, means over the seeds. That assumes that nothing overlaps and the link is filled;
    `predict.step_model` knows better, for the methods that a calibration of the machine has. Infinity: bytes are saved
    at no cost; None: none are saved, or the rows do not know.
    """
    sent, cost = mean_over_seeds(runs, sent_bytes), mean_over_seeds(runs, _cost_ms)
    base_sent, base_cost = mean_over_seeds(base, sent_bytes), mean_over_seeds(base, _cost_ms)
    if sent is None or cost is None or base_sent is None or base_cost is None or sent >= base_sent:
        return None
    return 8e3 * (base_sent - sent) / (cost - base_cost) if cost > base_cost else math.inf


def _cost_ms(row: Row) -> float | None:
    encode, decode = encode_ms(row), decode_ms(row)
    rounds = _a_step(row, "extra_collectives_time_ms_total", without_hooks=0.0) or 0.0
    return None if encode is None or decode is None else encode + decode + rounds


def _a_step(row: Row, name: str, without_hooks: float | None = None) -> float | None:
    value, steps = row.get(name), row.get("steps")
    if value is None and row.get("comm_time_source") == "profiler":
        return without_hooks
    return value / steps if is_number(value) and is_number(steps) and steps else None
