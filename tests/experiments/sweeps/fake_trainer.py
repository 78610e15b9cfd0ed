"""A trainer that takes no time: what it does depends on the seed. Light, for it is started often."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fsdp_lab import results
from fsdp_lab.results.migrate import migrate
from fsdp_lab.settings.config import parse

ROOT = Path(__file__).resolve().parents[3]


def row_with(config: dict[str, Any], digest: str, world_size: int, status: str) -> dict[str, Any]:
    """A recorded row with these settings."""
    recorded = (ROOT / "results" / "reference" / "fresh_weights" / "first_methods.jsonl").read_text().splitlines()[0]
    own = {"config": config, "config_hash": digest, "seed": config["seed"], "world_size": world_size}
    own |= {"compress_method": config["comm_compress"], "status": status, "run_name": config["run_name"] or "r"}
    return migrate(json.loads(recorded)) | own


def main() -> None:
    """Stands in for fsdp_lab.train."""
    config = parse(sys.argv[1:])
    seed, out = config.run.seed, Path(config.run.results_path)

    def leave_row(status: str, error: str | None = None) -> None:
        own = {"error": error, "resumed_at_steps": [3] if goes_on else []}
        results.append(out, row_with(config.resolved(), config.digest(), 1, status) | own)

    Path(config.run.output_dir, "runs").mkdir(parents=True, exist_ok=True)
    saved = Path(config.run.output_dir, "runs", str(config.run.run_name), "checkpoints", "step-00000003")
    goes_on = saved.exists()
    if seed == 11:  # diverges
        leave_row("failed", "diverged")
        sys.exit(1)
    if seed == 12:  # crashes, without a word the first time
        tried = out.with_name("tried")
        if not tried.exists():
            tried.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if seed == 13:  # crashes always
        print("out of memory")
        os._exit(3)
    if seed == 14:  # refuses its settings
        print("fsdp_lab.train: batch_size: too many tokens", file=sys.stderr)
        sys.exit(2)
    if seed == 17 and goes_on:  # cannot read its checkpoint
        sys.exit(2)
    if seed in (15, 16, 17) and not out.with_name("go").exists():  # runs until it is told to stop

        def stop(number: int, frame: object) -> None:
            if seed != 15:  # and saves
                saved.mkdir(parents=True)
                (saved / "manifest.json").touch()
            leave_row("preempted", "stopped by SIGTERM")
            sys.exit(143)

        signal.signal(signal.SIGTERM, stop)
        out.with_name("ready").touch()
        time.sleep(60)
    leave_row("ok")
    if config.run.save_model:
        model = Path(config.run.output_dir, "runs", str(config.run.run_name), "final_model")
        model.mkdir(parents=True)
        (model / "config.json").write_text('{"model_type": "gpt2", "n_positions": 256}')


if __name__ == "__main__":
    main()
