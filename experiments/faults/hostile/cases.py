"""All cases, area by area."""

from __future__ import annotations

from experiments.faults.hostile import (
    checkpoints,
    conversations,
    documents,
    flags,
    model_folders,
    rows,
    settings_files,
    shards,
)
from experiments.faults.hostile.case import Case

PARTS = (flags, settings_files, documents, conversations, model_folders, shards, checkpoints, rows)
CASES: tuple[Case, ...] = tuple(case for part in PARTS for case in part.CASES)
