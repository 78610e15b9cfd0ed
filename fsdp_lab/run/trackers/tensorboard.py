"""TensorBoard: scalars as the run goes, settings as hparams with the final numbers that they led to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsdp_lab.run.trackers.protocol import Status
from fsdp_lab.run.trackers.settings_as_text import flat

COMPARED = ("row/val_ppl", "row/val_loss", "row/train_loss", "row/compression_ratio", "row/step_time_ms_p50")
"""The final numbers that TensorBoard's page of hyperparameters shows beside the settings."""


class TensorBoard:
    """Events of one run in ``folder``; an earlier process of the run has made ``done`` steps."""

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, folder: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a third of a second: only where it is used

        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.parent.glob("events.out.tfevents.*"):  # of a run begun when they lay beside the folder
            earlier.rename(folder / earlier.name)
        self._writer: Any = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    @property
    def tracker(self) -> Any:
        """TensorBoard's own writer, a ``SummaryWriter`` of torch."""
        return self._writer

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Write the settings as hparams of this very run (`add_hparams` would make another run of them)."""
        from torch.utils.tensorboard import summary

        written: Any = summary.hparams  # torch does not type it
        for part in written(flat(values), dict.fromkeys(COMPARED, 0.0)):
            self._writer.file_writer.add_summary(part)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write each number as a scalar at ``step``."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, status: Status) -> None:
        """Write what is still in memory. Of how a run ended its page shows the first word only, also after a resume."""
        self._writer.close()
