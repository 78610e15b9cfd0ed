"""What a run's folder says of a run that has not ended: whether it can go on, and after how many steps."""

from __future__ import annotations

from pathlib import Path

from fsdp_lab.checkpoint.files import folder as on_disk
from fsdp_lab.settings.config import AnyTraining

FOLDER = "checkpoints"
NOT_BEGUN = "not_begun"
"""A file in a run's folder until its first step: nothing is lost when the run begins again."""


def may_resume(run_folder: Path, config: AnyTraining) -> bool:
    """Is this the folder of an unfinished run that can be gone on with, and is that wanted; or of one not begun?"""
    checkpoints = run_folder / FOLDER
    if (run_folder / NOT_BEGUN).exists():
        return True
    return config.run.resume != "never" and checkpoints.is_dir() and not (checkpoints / on_disk.FINISHED).exists()


def newest_step(run_folder: Path) -> int | None:
    """How many steps the newest checkpoint on the disk has; None when there is none. Not collective."""
    checkpoints = on_disk.found_in(run_folder / FOLDER)
    return checkpoints[0][0] if checkpoints else None
