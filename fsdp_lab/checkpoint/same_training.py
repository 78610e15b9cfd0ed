"""Who may go on from a checkpoint: the same ranks with the same settings, or whoever the user has said may differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fsdp_lab.checkpoint.files.folder import CheckpointError, Manifest
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import AnyTraining


def training_settings(config: AnyTraining) -> dict[str, Any]:
    """The settings that affect the training, by name: what a manifest says of it."""
    specs = config.specs()
    return {name: value for name, value in config.resolved().items() if specs[name].affects_training}


def check_training(manifest: Manifest, config: AnyTraining, ranks: Ranks, say: Callable[[str], None]) -> None:
    """CheckpointError where the checkpoint is of another training, unless the user allows that: then ``say`` it."""
    now = training_settings(config)
    defaults = {name: spec.default for name, spec in config.specs().items()}
    before = {name: manifest.settings.get(name, defaults[name]) for name in now}
    _check_replicas(manifest, before, now, ranks)
    ignored = _same_global_batch(manifest, config, ranks) if manifest.world != ranks.world else set()
    changed = [f"{k}: was {before[k]!r}, is {now[k]!r}" for k in now if before[k] != now[k] and k not in ignored]
    if changed and not config.run.resume_changed:
        raise CheckpointError(
            "resume: settings that affect the training have changed; --resume_changed true goes on nevertheless\n"
            + "\n".join(f"  {change}" for change in changed)
        )
    for change in changed:
        say(f"resume: changed: {change}")
    if manifest.torch != torch.__version__:
        say(f"resume: saved by torch {manifest.torch}, this is {torch.__version__}: perhaps not bit for bit")


def _check_replicas(manifest: Manifest, before: dict[str, Any], now: dict[str, Any], ranks: Ranks) -> None:
    """CheckpointError where replicas that train by themselves would not be the same ones: each has its own weights."""
    if {before.get("outer", "none"), now.get("outer", "none")} == {"none"}:
        return
    names = [name for name in now if name == "dp_replicas" or name.startswith("outer")]
    changed = [f"{name}: was {before[name]!r}, is {now[name]!r}" for name in names if before[name] != now[name]]
    if manifest.world != ranks.world:
        changed.append(f"ranks: were {manifest.world}, are {ranks.world}")
    if changed:
        raise CheckpointError(
            "resume: replicas that train by themselves go on as they were, on as many ranks; the model that a run "
            "has saved can begin another one (--model_dir)\n" + "\n".join(f"  {change}" for change in changed)
        )


def _same_global_batch(manifest: Manifest, config: AnyTraining, ranks: Ranks) -> set[str]:
    """The settings that may differ on another number of ranks, as all ranks' batch together stays what it was."""
    if not config.run.resume_resharded:
        raise CheckpointError(
            f"resume: the checkpoint is of {manifest.world} ranks, these are {ranks.world}; "
            "--resume_resharded true goes on nevertheless, not bit for bit"
        )
    batch = config.optim.batch_size
    assert batch is not None, "resolved"
    before = manifest.settings
    data_world = manifest.world // (before.get("tp", 1) * before.get("pp", 1))
    is_same = before.get("batch_size", 0) * data_world == batch * ranks.data_world
    return {"batch_size"} if is_same else set()
