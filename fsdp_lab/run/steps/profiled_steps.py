"""A few steps run under torch.profiler: to see the bytes of stock collectives, and for a profile that was asked for."""

from __future__ import annotations

from pathlib import Path

import comm_compress as cc
from fsdp_lab.measure.profile_report import read_profile, row as profile_row
from fsdp_lab.measure.profiling import Event, StockTraffic, Window, stock_calls
from fsdp_lab.run.run import Run
from fsdp_lab.trace import Profile
from fsdp_lab.training.communication import Communication

_STOCK_STEPS = 5  # that are enough to see stock collectives by


class ProfiledSteps:
    """The profiled steps of a run, if it has any, and what becomes of what they show.

    ``warmup`` steps come before them; ``done`` of ``total_steps`` steps were made by an earlier process.
    """

    def __init__(self, run: Run, comm: Communication, total_steps: int, done: int, warmup: int) -> None:
        self._run, self._comm = run, comm
        config = run.config.run
        wanted = config.profile_steps if config.profile else _STOCK_STEPS * stock_bytes_are_unseen(run, comm)
        traces = run.paths.traces if config.profile else None
        self.window = Window(warmup + 1, min(wanted, total_steps - warmup), traces, run.ranks.rank, done)
        self.profile: Profile | None = None
        """What the traces say, if a profile was asked for and could be read."""

    def observe(self, events: list[Event]) -> None:
        """Account for the stock collectives of all ranks that the window has seen; collective."""
        size = {"fp32": 4, "bf16": 2, "fp16": 2}
        itemsize: dict[cc.Op, int] = {
            "reduce_scatter": size[self._run.config.comm.comm_dtype],
            "all_gather": size[self._run.record.noted["param_dtype"]],
        }
        ranks = self._run.ranks
        if self._comm.has_stock_direction:
            self._comm.stock = StockTraffic(ranks.gather(stock_calls(events)), itemsize, ranks.backend)
        if self.window.trace is not None:
            self._read_profile(self.window.trace)

    def _read_profile(self, path: Path) -> None:
        self.profile, complaint = read_profile(path, self._run.ranks)
        if self.profile is not None:
            self._run.note(**profile_row(self.profile))
            self._run.progress.record(self.window.last, self.profile.scalars())
        elif complaint is not None:
            self._run.say(complaint)


def stock_bytes_are_unseen(run: Run, comm: Communication) -> bool:
    """Is there traffic of FSDP2's own, and no profile yet that has seen how much?"""
    return comm.must_be_watched and run.ranks.world > 1
