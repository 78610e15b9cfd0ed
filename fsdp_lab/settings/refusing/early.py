"""All that can be known to be wrong before any rank starts, reported at once; torch is needed only for methods.

Ranks take 14 seconds to import torch, join the process group and agree. A misspelled method, preset or path is found
before.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fsdp_lab.extras import missing
from fsdp_lab.settings.groups import CommConfig, DataConfig, LoraConfig, ModelConfig, ParallelConfig, RunConfig
from fsdp_lab.settings.reading.cli import read
from fsdp_lab.settings.reading.fields import Config, ConfigError
from fsdp_lab.settings.reading.specs import Spec

C = TypeVar("C", bound=Config)
MIXED_PAIRS = "data_mix: a masked model takes its pairs of segments from one text; give data_path"


def checked(config: type[C], argv: Sequence[str], prog: str = "fsdp_lab.train") -> C:
    """The settings of a program that is about to run: `cli.parse_as`, with methods, presets and paths checked as well.

    ConfigError lists all complaints, with those about the flags themselves and about settings that exclude each other.
    """
    values, complaints = read(config, argv, prog)
    groups, further = config.built(values)
    complaints += further + _missing(values, config.specs())
    for group in groups.values():
        complaints += _about_group(group, groups["optim"].optimizer if "optim" in groups else None)
    if groups.keys() == config.groups().keys():
        complaints += config(**groups).conflicts()
    if {"model", "lora"} <= groups.keys():
        complaints += _about_adapters(groups["model"], groups["lora"])
    if {"model", "data"} <= groups.keys() and groups["data"].data_mix:
        complaints += _about_a_mix(groups["model"])
    if "data" in groups and groups["data"].data_format == "conversations":
        from fsdp_lab.settings.refusing.conversations import about_conversations

        complaints += about_conversations((groups.get("model") or groups["validate"]).model_dir)
    if complaints:
        raise ConfigError(complaints)
    return config(**groups)


def _about_group(group: Any, optimizer: str | None) -> list[str]:
    if isinstance(group, CommConfig):
        return _about_methods(group, optimizer)
    if isinstance(group, ModelConfig):
        return _about_model(group)
    if isinstance(group, RunConfig):
        absent = [missing(name) for name in group.tracker_names if name != "tensorboard"]
        return [f"trackers: {complaint}" for complaint in absent if complaint]
    if isinstance(group, ParallelConfig):
        from fsdp_lab.settings.refusing.pipelines import about_pipelines

        return about_pipelines(group)
    if isinstance(group, DataConfig):
        complaints = [_absent(name) for name in group.data_mix if name != "embedded"]
        return [f"data_mix: {complaint}" for complaint in complaints if complaint]
    return []


def _about_model(model: ModelConfig) -> list[str]:
    from fsdp_lab.settings.models.presets import unknown_preset

    if model.model is not None and model.model_dir is None and (complaint := unknown_preset(model.model)):
        return [complaint]
    from fsdp_lab.settings.refusing.operators import about_operators

    return about_operators(model)


def _about_a_mix(model: ModelConfig) -> list[str]:
    """A complaint about several corpora for a model that takes its pairs of segments from one text."""
    from fsdp_lab.settings.models.masked import is_masked

    return [MIXED_PAIRS] if is_masked(model) else []


def _about_adapters(model: ModelConfig, lora: LoraConfig) -> list[str]:
    """Which layers the model's family does not have, and the package that makes adapters, where it is missing."""
    if lora.lora_rank is None:
        return []
    from fsdp_lab.settings import adapters
    from fsdp_lab.settings.models import presets

    absent = missing("lora")
    complaints = [f"lora_rank: {absent}"] if absent else []
    try:
        adapters.complete(lora, presets.family(model))
    except ConfigError as error:
        complaints += error.complaints
    return complaints


def _about_methods(comm: CommConfig, optimizer: str | None) -> list[str]:
    """The registry's complaints about both methods. Default methods are not checked: that would import torch."""
    names = (
        "comm_compress",
        "comm_config_json",
        "param_compress",
        "param_config_json",
        "replica_compress",
        "activation",
        "activation_grad",
        "outer_compress",
        "outer_gather",
        "outer_gradient_compress",
        "optimizer_compress",
        "optimizer_gather",
        "optimizer_exchange",
    )
    default = type(comm)()
    if all(getattr(comm, name) in (getattr(default, name), "none") for name in names):
        return []
    from fsdp_lab.settings.methods import complaints_about

    return complaints_about(comm, optimizer)


def _missing(values: Mapping[str, Any], specs: Mapping[str, Spec]) -> list[str]:
    complaints = []
    for name, value in values.items():
        kind, *words = specs[name].limits.get("exists", ("",)) if name in specs else ("",)
        if kind and isinstance(value, str) and value not in words and (complaint := _absent(value, kind)):
            complaints.append(f"{name}: {complaint}")
    return complaints


def _absent(name: str, kind: str = "") -> str:
    """Why ``name`` is no path of an existing "file" or "folder" (``kind``; empty: of either); empty when it is one."""
    try:
        mode = Path(name).stat().st_mode if name else 0
    except FileNotFoundError:
        mode = 0
    except (OSError, ValueError) as error:  # too long, not ours to see, through a file as if it were a folder, a NUL
        return f"{name[:200]} cannot be looked at ({getattr(error, 'strerror', None) or error})"
    if not mode:
        return f"no folder {name}" if kind == "folder" else f"{name} is not there"
    is_folder = stat.S_ISDIR(mode)
    if (kind == "folder" and not is_folder) or (kind == "file" and is_folder):
        return f"no folder {name}" if kind == "folder" else f"{name} is a folder, not a file"
    return ""
