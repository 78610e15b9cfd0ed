"""Which settings of a row say how its ranks communicated, and which do not affect the training.

A row says it itself (``arm_settings``, ``side_settings``), so a new setting of the trainer needs no change here. Rows
of schema version 3 do not. The list that they need is below; it is complete, because no row of that version is written
any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# where a run wrote, what it looked at, and when it saved or gave up
SIDE_SETTINGS_OF_VERSION_3 = frozenset(
    {
        *("cache_dir", "data_prefetch", "output_dir", "results_path", "run_name", "curves_dir", "log_interval"),
        *("target_ppl", "ppl_at_s", "grad_error_every", "profile", "profile_steps", "timeout_s", "hang_timeout_s"),
        *("stop_grace_s", "tensorboard", "save_model", "save_steps", "save_on_stop", "keep_checkpoints", "resume"),
        *("resume_resharded", "resume_changed", "trust_pickle", "features_dir", "features_gb"),
    }
)


def side_settings(row: Mapping[str, Any]) -> frozenset[str]:
    """The names of the row's settings that do not affect the training."""
    said = row.get("side_settings")
    return SIDE_SETTINGS_OF_VERSION_3 if said is None else frozenset(name for name in said if isinstance(name, str))


def arm_settings(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings that say how the ranks communicated, with their defaults; empty for rows of version 3."""
    return row.get("arm_settings") or {}


LATER: Mapping[str, Any] = {
    "operators": {},
    "cpu_offload": False,
    "fsdp_overlap_reduce": 0,
    "dp": 0,
    "dp_replicas": 1,
    "tp": 1,
    "layout": "tp",
    "shares": None,
    "pp": 1,
    "pp_schedule": "1f1b",
    "pp_micro_batches": 0,
    "optimizer": "adamw",
    "muon_momentum": None,
    "demo_decay": None,
    "adam_freeze_after": None,
    "dion_rank": None,
    "dion_learning_rate": None,
    "dion_momentum": None,
    "adam_variance_scaler": None,
    "adam_local_scaler": None,
    "adam_local_steps": None,
    "data_format": "documents",
}
"""Settings that came after rows had been written, with their defaults: a row without one did what its default says."""


def is_as_before(name: str, value: Any) -> bool:
    """Is a setting as it was when there was no such setting?"""
    return name in LATER and value == LATER[name]


TRAINING = (
    *("optimizer", "muon_momentum", "demo_decay", "adam_freeze_after", "dion_rank", "dion_learning_rate"),
    *("dion_momentum", "adam_variance_scaler", "adam_local_scaler", "adam_local_steps", "dp_replicas"),
)
"""What moves the weights, and how many copies of them there are. Elsewhere these must be equal within a comparison; on
the chart, where optimizers and local steps stand beside each other, they are a part of the arm."""


def training_settings(row: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `TRAINING` that are not at their defaults: AdamW, of ranks that share one copy of the weights."""
    config = row["config"]
    return {name: config[name] for name in TRAINING if name in config and config[name] != LATER[name]}
