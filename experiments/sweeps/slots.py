"""The machine divided between cells that run at the same time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.sweeps.recipe.cells import Cell
from experiments.sweeps.recipe.start import Start


@dataclass(frozen=True)
class Slot:
    """A part of the machine; None stands for all of it. ``gpus`` are names as CUDA_VISIBLE_DEVICES has them."""

    cores: tuple[int, ...] | None = None
    gpus: tuple[str, ...] | None = None

    def environment(self) -> dict[str, str]:
        """The variables that tell a cell which GPUs are its own."""
        return {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}


def divide(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> list[Slot]:
    """The machine in ``jobs`` equal parts; cores, and GPUs, are shared if they are fewer than jobs."""
    if jobs == 1:
        return [Slot()]
    each = max(1, len(cores) // jobs)
    return [
        Slot(tuple(cores[(job * each + i) % len(cores)] for i in range(each)), _of_a_job(job, jobs, gpus))
        for job in range(jobs)
    ]


def _of_a_job(job: int, jobs: int, gpus: Sequence[str]) -> tuple[str, ...] | None:
    if not gpus:
        return None
    each = len(gpus) // jobs
    return tuple(gpus[job * each : (job + 1) * each]) if each else (gpus[job % len(gpus)],)


def gpus_here() -> list[str]:
    """The GPUs that a training run would see."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip()]
    import torch  # only asked when a sweep is about to run

    return [str(index) for index in range(torch.cuda.device_count())]


def too_large(
    cells: Sequence[Cell], slots: Sequence[Slot], gpus: Sequence[str], starts: Sequence[Start] = ()
) -> str | None:
    """Why some cell does not fit into a part of the machine, or a common start into all of it; ranks without GPUs
    always fit."""
    ranks = max((start.processes for start in starts), default=0)
    if gpus and ranks > len(gpus):
        here = f"{len(gpus)} {'is' if len(gpus) == 1 else 'are'} here"
        return f"start: {ranks} ranks need as many GPUs, and {here}; let it play them: virtual_ranks: {ranks}"
    each = max(1, len(gpus) // len(slots))
    needed = max((cell.processes for cell in cells), default=0)
    if not gpus or needed <= each:
        return None
    return f"world_sizes: {needed} ranks need as many GPUs, a cell has {each} here (see --jobs, and --slurm for more)"


def warning(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> str | None:
    """Why times that are measured with several cells at once are doubtful."""
    if jobs == 1 or jobs <= len(gpus):
        return None
    if gpus:
        return f"--jobs {jobs} with {len(gpus)} GPU{'s' * (len(gpus) > 1)}: cells share them; step times mean nothing"
    crowd = "" if jobs <= len(cores) else f", of which there are only {len(cores)}"
    return f"--jobs {jobs} without GPUs: cells share memory and cores{crowd}; their step times mean nothing"
