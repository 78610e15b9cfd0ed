"""Starting a training run whose ranks reach each other over an emulated network."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.network.namespaces import Namespaces
from experiments.runs.training import TRAINER
from fsdp_lab.ranks.environment import rank_environment


def train_behind(net: Namespaces, flags: Sequence[str]) -> dict[str, Any]:
    """Train behind the network's links, leave nothing behind, and return the row. RuntimeError when the run fails."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        where = ["--output_dir", folder, "--results_path", str(rows), "--no_save_model", "--tensorboard", "false"]
        command = [sys.executable, "-m", *TRAINER, *where, *flags]
        if code := net.run(command, rank_environment(net.ranks), stdout=subprocess.DEVNULL):
            raise RuntimeError(f"the run ended with exit code {code}: {' '.join(flags)}")
        row: dict[str, Any] = json.loads(rows.read_text())
        return row
