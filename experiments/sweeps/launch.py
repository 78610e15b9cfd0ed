"""A cell as processes: which command starts it, from which settings, and the row of one that left none."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.runs.training import torchrun_command
from experiments.sweeps.recipe.cells import Cell
from experiments.sweeps.recipe.trainers import AnyConfig
from fsdp_lab import results
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.run.environment import environment

_FIRST_PORT = 29500


def folder_name(cell: Cell) -> str:
    """The folder of this cell alone, whatever recipe it is in."""
    link = str(cell.link or "").replace(" ", ",")
    return "-".join([_stem(cell), cell.key.config_hash[:8], *([link] if link else [])])


def new_run_name(cell: Cell) -> str:
    """A new name that says what runs: ``topk,ratio=0.01+int8-gpt2-nano-2-s1-20261122-014500-3fa2``."""
    return f"{_stem(cell)}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def _stem(cell: Cell) -> str:
    parts = [cell.arm.label.replace(" + ", "+"), *list(cell.varied.values())[:2], f"s{cell.seed}"]
    words = [re.sub(r"[^A-Za-z0-9._+=,@-]+", ",", Path(part).name if "/" in part else part) for part in parts]
    return "-".join(words)[:80].strip("-._+=,@")


def config_of(cell: Cell, name: str, out: Path, output_dir: Path | None) -> AnyConfig:
    """The cell's settings with the places that it writes to; the digest stays the cell's."""
    values = cell.config.resolved() | {
        "run_name": name,
        "results_path": str(out),
        "curves_dir": str(out.parent / "curves"),
    }
    if output_dir is not None:
        values["output_dir"] = str(output_dir)
    config = cell.trainer.config.of(**values)
    assert config.digest() == cell.config.digest(), "where a run writes does not affect the training"
    return config


def command_of(cell: Cell, settings: Path, slurm: Mapping[str, str] | None = None) -> list[str]:
    """The command line that trains one cell from the settings in a YAML file.

    Under Slurm with several nodes (``slurm`` is its environment) every node has a torchrun, and they meet at the first
    node. ValueError when the ranks cannot be spread evenly."""
    module, flags = cell.trainer.module, ["--config", str(settings)]
    alone = [sys.executable, "-m", module, *flags]
    nodes = int((slurm or {}).get("SLURM_JOB_NUM_NODES", "1"))
    if cell.link is not None:
        link = ["--rate", cell.link.rate, "--delay", cell.link.delay, "--ranks", str(cell.processes)]
        return [sys.executable, "-m", "experiments.links", *link, "--", *alone]
    if slurm is not None and nodes > 1:
        return _across(nodes, cell.processes, slurm, [module, *flags])
    if cell.processes == 1:  # the trainer makes itself the only rank
        return alone
    return torchrun_command(module, flags, cell.processes)


def environment_of(cell: Cell) -> dict[str, str]:
    """The environment of the cell's process, as `fsdp_lab.launch` sets it up for several ranks."""
    return rank_environment(1) if cell.processes == 1 else dict(os.environ)


def record(cell: Cell, config: AnyConfig, status: str, error: str, out: Path) -> dict[str, Any]:
    """Write the row of a run that could not write its own, and return it."""
    rate, delay = cell.link.as_in_rows if cell.link else (None, None)
    row = {
        "status": status,
        "error": error[:500],
        "run_name": config.run.run_name,
        "world_size": cell.world_size,
        "model": cell.varied[cell.trainer.noun],
        **config.row(),
        "link_rate_asked": rate,
        "link_delay_ms": delay,
        **environment(),
    }
    return results.append(out, row)


def _across(nodes: int, ranks: int, slurm: Mapping[str, str], command: list[str]) -> list[str]:
    if ranks % nodes:
        raise ValueError(f"{ranks} ranks cannot be spread evenly over the {nodes} nodes of this Slurm job")
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", slurm["SLURM_JOB_NODELIST"]], capture_output=True, text=True, check=True
    )
    first = listed.stdout.split()[0]
    job = int(slurm["SLURM_JOB_ID"])
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first}:{_FIRST_PORT + job % 1000}", f"--rdzv-id={job}"]
    srun = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    torchrun = [sys.executable, "-m", "fsdp_lab.launch", f"--nnodes={nodes}", f"--nproc-per-node={ranks // nodes}"]
    return [*srun, *torchrun, *meeting, "-m", "--", *command]
