"""What keeps cells from running on this machine, said before the first one starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.network.namespaces import unavailable
from experiments.sweeps.recipe.cells import Cell


def obstacles(cells: Sequence[Cell]) -> list[str]:
    """One line for each obstacle: missing files and folders (all that one command builds together), links."""
    missing: dict[tuple[str, Path], str | None] = {}
    for cell in cells:
        settings = cell.config.resolved()
        for name, where in cell.trainer.needs.items():
            if settings[name] and not _is_there(name, path := Path(settings[name])):
                missing[where, path] = cell.trainer.built_by(path)
    lines = [f"{where} {path} is not there" for (where, path), command in missing.items() if command is None]
    for command in dict.fromkeys(command for command in missing.values() if command is not None):
        these = [f"{where} {path}" for (where, path), other in missing.items() if other == command]
        are, them = ("is", "it") if len(these) == 1 else ("are", "them")
        lines.append(f"{', '.join(these)} {are} not there; build {them}: fsdp-lab {command}")
    if any(cell.link is not None for cell in cells) and (why := unavailable()):
        lines.append(f"links: {why}")
    return lines


def _is_there(setting: str, path: Path) -> bool:
    return path.is_dir() if setting.endswith("_dir") else path.is_file()
