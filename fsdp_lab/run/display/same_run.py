"""The same run by other methods, from committed rows: what a run's own figures are to be held against."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import comm_compress as cc
from fsdp_lab import results
from fsdp_lab.run.display.units import in_bytes
from fsdp_lab.settings.config import TrainConfig

ROWS = Path(__file__).resolve().parents[3] / "results" / "reference" / "fresh_weights" / "first_run.jsonl"
"""Made by ``experiments/recipes/fresh_weights/first_run.yaml``; a checkout has them, an installed package does not."""


def same_run(row: Mapping[str, Any], rows: Path = ROWS) -> list[str]:
    """A table of ``row`` beside the committed rows that differ from it in their method alone.

    Empty where there are none. ``rows``: the results file that is looked into.
    """
    others = [other for other in _load(rows) if _is_same(other, row) and _arm(other) != _arm(row)]
    if not others or not row["bytes_compressed_total"]:
        return []
    lines = [f"{'the same run by method':34s}{'sent a step':>14s}{'ms a step':>12s}{'PPL':>10s}"]
    lines += [_line(_arm(other), other) for other in others]
    lines.append(_line(f"{_arm(row)} (now)", row))
    return [*lines, _where(others[0], row)]


def _load(path: Path) -> list[dict[str, Any]]:
    try:
        return [row for row in results.load(path) if row["status"] == "ok"]
    except (OSError, ValueError):  # none, or not to be read: there is nothing to show beside
        return []


def _is_same(other: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Did both train the same model on the same tokens in the same way, on as many ranks?"""
    left_out = {*row["arm_settings"], *row["side_settings"]}
    defaults = {name: spec.default for name, spec in TrainConfig.specs().items()}  # of settings younger than a row
    full = [defaults | one["config"] for one in (other, row)]
    settings = [{k: v for k, v in config.items() if k not in left_out} for config in full]
    facts = [[one[k] for k in ("world_size", "backend", "data_digest", "steps")] for one in (other, row)]
    return settings[0] == settings[1] and facts[0] == facts[1]


def _arm(row: Mapping[str, Any]) -> str:
    config = row["config"]
    return cc.labels.arm_label(
        cc.labels.label(row["compress_method"], row["compress_config"]),
        cc.labels.label(row["param_compress_method"], row["param_compress_config"]),
        reduced_in=row["comm_dtype"],
        prefetch=config["fsdp_prefetch"],
        reshard=config["fsdp_reshard"],
    )


def _line(name: str, row: Mapping[str, Any]) -> str:
    sent = in_bytes(row["bytes_compressed_total"] / row["steps"])
    return f"{name:34s}{sent:>14s}{row['step_time_ms_p50']:>12.0f}{row['val_ppl']:>10.2f}"


def _where(other: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    then, now = ((one["hardware"]["cpu"], one["hardware"]["cores"]) for one in (other, row))
    where = f"the others: {other['time_utc'][:10]}, {then[1]} cores of {then[0]}"
    if then != now:
        return f"{where}: not this machine, so times cannot be compared, and PPL only roughly"
    return f"{where}; one run each, so differences in PPL below some percents may be chance"
