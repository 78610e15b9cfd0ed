"""Rows of earlier schema versions become rows of the present one: one function for each step between two versions."""

from collections.abc import Callable, Mapping
from typing import Any

from fsdp_lab.results.derived import derived
from fsdp_lab.results.schema import BY_NAME, SCHEMA_VERSION
from fsdp_lab.settings.config import TrainConfig, parts_of_config
from fsdp_lab.settings.reading.fields import ConfigError


def migrate(row: Mapping[str, Any]) -> dict[str, Any]:
    """``row`` in the present version, with ``migrated_from`` saying which it had.

    What was not measured then is null. A row of this version gets what follows from its counts where it was written
    before the program knew the field; of a version that is not known it is returned as it is.
    """
    version, new = row.get("schema_version"), dict(row)
    if type(version) is int and version == SCHEMA_VERSION:
        return new | {name: value for name, value in derived(new).items() if name not in new}
    if type(version) is not int or version not in STEPS:
        return new
    for step in range(version, SCHEMA_VERSION):
        STEPS[step](new)
    new |= {"schema_version": SCHEMA_VERSION, "migrated_from": new.get("migrated_from") or version}
    for name, value in derived(new).items():
        new.setdefault(name, value)
    return {name: new.pop(name, None) for name in BY_NAME} | new  # what is left over is for the validator to name


def _from_1(row: dict[str, Any]) -> None:
    """peak_gpu_gb became mem_peak_alloc_gb; elements, and every ratio with its denominator, are new."""
    gpu, rss = row.pop("peak_gpu_gb", None), row.get("peak_rss_gb")
    row["mem_peak_alloc_gb"] = rss if gpu is None else gpu
    row["mem_peak_reserved_gb"] = rss if gpu is None else None
    size = {"fp32": 4, "bf16": 2, "fp16": 2}
    dtypes = {"reduce_scatter": row.get("comm_dtype"), "all_gather": row.get("param_dtype")}
    raw = row.get("bytes_raw_by_op")
    if isinstance(raw, dict) and raw.keys() == dtypes.keys() and all(type(count) is int for count in raw.values()):
        row["elements_by_op"] = {op: raw[op] // size.get(str(dtype), 4) for op, dtype in dtypes.items()}
    for name, value in derived(row).items():
        row.setdefault(name, value)


def _from_2(row: dict[str, Any]) -> None:
    """Settings that came later have their defaults, which is what was done before them; digests leave defaults out."""
    config = row.get("config")
    if not isinstance(config, dict):
        return
    try:
        complete = TrainConfig.of(**config)
    except (ConfigError, TypeError):  # of a setting that is gone, or damaged: for the validator to name
        return
    row["config"], row["config_hash"] = complete.resolved(), complete.digest()
    row |= parts_of_config(complete)


def _from_3(row: dict[str, Any]) -> None:
    """Which settings are the arm's, and which do not affect the training, stays null: readers know version 3's."""


STEPS: dict[int, Callable[[dict[str, Any]], None]] = {1: _from_1, 2: _from_2, 3: _from_3}
