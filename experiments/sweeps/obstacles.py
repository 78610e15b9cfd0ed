"""What keeps cells from running on this machine, said before the first one starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.namespaces import unavailable
from experiments.sweeps.cells import Cell
from experiments.sweeps.recipe import CORPORA_FOLDER
from fsdp_lab.data.corpora import CORPORA


def obstacles(cells: Sequence[Cell]) -> list[str]:
    """One line each: a corpus or a model's folder that is not there, links that cannot be had."""
    corpora = sorted({Path(path) for cell in cells if (path := cell.config.data.data_path)})
    folders = sorted({Path(path) for cell in cells if (path := cell.config.model.model_dir)})
    found = [f"corpus: {path} is not there{_how_to_build(path)}" for path in corpora if not path.is_file()]
    found += [f"models: model_dir {folder} is not there" for folder in folders if not folder.is_dir()]
    if any(cell.link is not None for cell in cells) and (why := unavailable()):
        found.append(f"links: {why}")
    return found


def _how_to_build(path: Path) -> str:
    name = path.name.removesuffix(".jsonl.gz")
    known = name in CORPORA and path.parent == CORPORA_FOLDER
    return f"; build it: python -m fsdp_lab.data.build {name}" if known else ""
