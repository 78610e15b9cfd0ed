"""Rows with planted times, bytes and links, beside what `planted_rows` plants."""

from __future__ import annotations

from typing import Any

from analysis.rows.reading import Row
from tests.analysis.planted_rows import STEPS, row

# ms of a step: rest, encoding, wire, decoding
PARTS = {"none": (70.0, 0.0, 40.0, 0.0), "bf16": (70.0, 1.0, 20.0, 1.0), "int8": (70.0, 3.0, 10.0, 2.0)}
JITTER = {1: 0.9, 2: 1.0, 3: 1.1}  # of all times, by seed


def timed(method: str, seed: int = 1, worse: float = 0.0, **changes: Any) -> Row:
    """A run whose step has the parts of ``PARTS`` times ``JITTER[seed]``; further ``changes`` as `planted_rows.row`."""
    parameters = changes.pop("parameters", None)
    made = row(method, seed, worse, parameters, **{k: v for k, v in changes.items() if k in _COLUMNS})
    rest, encode, wire, decode = (JITTER[seed] * ms for ms in PARTS.get(method, PARTS["int8"]))
    step = rest + encode + wire + decode
    hooked = method != "none"
    total = made["bytes_compressed_total"]
    values = {
        "step_time_ms_mean": step,
        "step_time_ms_p50": step,
        "tokens_per_s": 1e6 / step,
        "comm_time_ms_total": STEPS * wire,
        "comm_ratio": wire / step,
        "comm_time_source": "ledger" if hooked else "profiler",
        "compress_time_ms_total": STEPS * encode if hooked else None,
        "decompress_time_ms_total": STEPS * decode if hooked else None,
        "extra_collectives_time_ms_total": 0.0 if hooked else None,
        "value_bytes": total - 1000 if hooked else None,
        "index_bytes": 600 if hooked else None,
        "metadata_bytes": 400 if hooked else None,
    }
    overridden = {name: value for name, value in changes.items() if name in values or name not in _COLUMNS}
    return Row(dict(made) | values | overridden)


def virtual(method: str, seed: int, worlds: int, worse: float = 0.0) -> Row:
    """A run of as many virtual ranks, which have no times."""
    none = dict.fromkeys(("step_time_ms_mean", "step_time_ms_p50", "tokens_per_s", "comm_ratio", "comm_time_ms_total"))
    return timed(method, seed, worse, world_size=worlds, virtual_ranks=worlds, **none)


_COLUMNS = {*row("none"), *row("none")["config"]}
