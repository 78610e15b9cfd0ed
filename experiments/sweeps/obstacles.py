"""What keeps cells from running on this machine, said before the first one starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.network.namespaces import unavailable
from experiments.sweeps.recipe.cells import Cell
from experiments.sweeps.recipe.rates import COMMAND, Rates
from experiments.sweeps.recipe.start import Start
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL


def obstacles(cells: Sequence[Cell], starts: Sequence[Start] = (), rates: Rates | None = None) -> list[str]:
    """One line for each obstacle: missing files and folders (all that one command builds together), links.

    ``starts``: what the sweep trains first where cells need it and it is not there; ``rates``: the file that has to be
    there."""
    missing: dict[tuple[str, Path], str | None] = {}
    trained = {start.folder for start in starts}
    wanted = [(cell.trainer, cell.config.resolved()) for cell in cells]
    needed = {settings.get("model_dir") for _, settings in wanted}
    to_train = [start for start in starts if str(start.folder) in needed and not start.is_there]
    wanted += [(LANGUAGE_MODEL, start.config.resolved()) for start in to_train]
    for trainer, settings in wanted:
        for name, where in trainer.needs.items():
            if settings[name] and not _is_there(name, path := Path(settings[name])) and path not in trained:
                missing[where, path] = trainer.built_by(path)
    lines = [f"{where} {path} is not there" for (where, path), command in missing.items() if command is None]
    for command in dict.fromkeys(command for command in missing.values() if command is not None):
        these = [f"{where} {path}" for (where, path), other in missing.items() if other == command]
        are, them = ("is", "it") if len(these) == 1 else ("are", "them")
        lines.append(f"{', '.join(these)} {are} not there; build {them}: fsdp-lab {command}")
    if rates is not None and not rates.is_there:
        lines.append(f"rates: {rates.path} is not there; tune first, then choose: {COMMAND.format(rates.path)}")
    if any(cell.link is not None for cell in cells) and (why := unavailable()):
        lines.append(f"links: {why}")
    return lines


def _is_there(setting: str, path: Path) -> bool:
    return path.is_dir() if setting.endswith("_dir") else path.is_file()
