"""What can be known to be wrong before any rank is started: all of it at once, without torch where no method is named.

Ranks take 14 seconds to import, join and agree; a misspelled method, preset or path should cost none of them.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fsdp_lab.settings.groups import CommConfig, DataConfig, ModelConfig
from fsdp_lab.settings.reading.cli import read
from fsdp_lab.settings.reading.fields import Config, ConfigError
from fsdp_lab.settings.reading.specs import Spec

C = TypeVar("C", bound=Config)


def checked(config: type[C], argv: Sequence[str], prog: str = "fsdp_lab.train") -> C:
    """As `cli.parse_as`, for who is about to run: also methods, presets, paths, and what does not go together.

    ConfigError lists all complaints, those about the flags themselves among them.
    """
    values, complaints = read(config, argv, prog)
    parts, further = config.parts(values)
    complaints += further + _missing(values, config.specs())
    for part in parts.values():
        complaints += _of_part(part)
    if parts.keys() == config.groups().keys():
        complaints += config(**parts).conflicts()
    if complaints:
        raise ConfigError(complaints)
    return config(**parts)


def _of_part(part: Any) -> list[str]:
    if isinstance(part, CommConfig):
        return _methods(part)
    if isinstance(part, ModelConfig) and part.model is not None and part.model_dir is None:
        from fsdp_lab.settings.presets import unknown_preset

        return [complaint] if (complaint := unknown_preset(part.model)) else []
    if isinstance(part, DataConfig):
        said = [_absent(name) for name in part.data_mix if name != "embedded"]
        return [f"data_mix: {complaint}" for complaint in said if complaint]
    return []


def _methods(comm: CommConfig) -> list[str]:
    """What the registry says of both methods; the default ones need no asking, which would import torch."""
    names = ("comm_compress", "comm_config_json", "param_compress", "param_config_json")
    usual = type(comm)()
    if all(getattr(comm, name) in (getattr(usual, name), "none") for name in names):
        return []
    from fsdp_lab.settings.methods import complaints_about

    return complaints_about(comm)


def _missing(values: Mapping[str, Any], specs: Mapping[str, Spec]) -> list[str]:
    found = []
    for name, value in values.items():
        kind, *words = specs[name].limits.get("exists", ("",)) if name in specs else ("",)
        if kind and isinstance(value, str) and value not in words and (complaint := _absent(value, kind)):
            found.append(f"{name}: {complaint}")
    return found


def _absent(name: str, kind: str = "") -> str:
    """Why ``name`` is no path of a "file" or "folder" (or of either) that is there; empty when it is one."""
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
