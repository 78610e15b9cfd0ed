"""Checkpoints: everything a run needs to go on as if it had never stopped (docs/checkpoints.md).

Read `saving` first: when a run saves, and how another process goes on. `protocols` says what it asks of the run,
`checkpoints` writes and reads with all ranks, `folder` is what lies on the disk, `safe_load` reads what others may have
tampered with.
"""

from fsdp_lab.checkpoint.checkpoints import Checkpoint, Checkpoints, Content
from fsdp_lab.checkpoint.folder import CheckpointError
from fsdp_lab.checkpoint.protocols import Restored, SavedRun, Stateful, Training
from fsdp_lab.checkpoint.saving import NOT_BEGUN, Saving, may_resume, newest_step

__all__ = [
    "NOT_BEGUN",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "Content",
    "Restored",
    "SavedRun",
    "Saving",
    "Stateful",
    "Training",
    "may_resume",
    "newest_step",
]
