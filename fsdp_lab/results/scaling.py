"""Weak scaling: which share of W times one rank's speed W ranks reach."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def scaling_efficiency(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """For every row: tokens/s of its W ranks over W times the tokens/s of one rank with the same settings; 1 is ideal.

    The one-rank rows are those among ``rows`` that ended well, with the same ``config_hash``, CPU and GPUs; of several,
    their median. None where there is none. Batches are per rank, so this is weak scaling. Ranks that share one
    machine's cores have fewer each than one rank alone: their figure is about the machine, not about communication.
    """
    alone: dict[Any, list[float]] = {}
    for row in rows:
        if row["status"] == "ok" and row["world_size"] == 1:
            alone.setdefault(_kind(row), []).append(row["tokens_per_s"])
    return [_efficiency(row, alone.get(_kind(row), [])) for row in rows]


def _efficiency(row: Mapping[str, Any], alone: list[float]) -> float | None:
    if row["tokens_per_s"] is None or not alone:
        return None
    return float(row["tokens_per_s"] / (row["world_size"] * statistics.median(alone)))


def _kind(row: Mapping[str, Any]) -> tuple[Any, ...]:
    hardware = row["hardware"] or {}
    return row["config_hash"], hardware.get("cpu"), tuple(hardware.get("gpus", ()))
