"""Checkpoints: everything a run needs to go on as if it had never stopped (docs/trainer/checkpoints.md).

Read `saving` first: when a run saves, and how another process goes on. `protocols` says what it asks of the run,
`state` is what is taken from it, `same_training` says who may go on. `checkpoints` saves in the background,
`unfinished` says what a folder has of a run that has not ended. `files` is one checkpoint on disk, written and read.
"""

from fsdp_lab.checkpoint.checkpoints import Checkpoints
from fsdp_lab.checkpoint.files.content import Content
from fsdp_lab.checkpoint.files.folder import CheckpointError
from fsdp_lab.checkpoint.files.reading import Checkpoint
from fsdp_lab.checkpoint.protocols import Restored, SavedRun, Stateful, Training
from fsdp_lab.checkpoint.saving import Saving
from fsdp_lab.checkpoint.unfinished import NOT_BEGUN, may_resume, newest_step

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
