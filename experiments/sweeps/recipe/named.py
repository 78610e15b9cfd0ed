"""The recipes of a checkout by their names: ``user_model`` for ``experiments/recipes/links/user_model.yaml``.

Files whose names begin with ``_`` are no recipes: recipes include them.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from fsdp_lab.settings.flag_values import a_file

FOLDER = Path(__file__).resolve().parents[2] / "recipes"


def recipe_file(text: str) -> Path:
    """The recipe that a command names: a file, or the name of a recipe below `FOLDER`. ValueError if it is neither."""
    if Path(text).exists():
        return a_file(text)
    there = {path.stem: path for path in sorted(FOLDER.rglob("[!_]*.yaml"))}
    if text in there:
        return _shown(there[text])
    close = difflib.get_close_matches(Path(text).stem, there, n=1, cutoff=0.7)
    meant = f"; did you mean {close[0]}, which is {_shown(there[close[0]])}?" if close else ""
    raise ValueError(f"wants a file, or the name of a recipe below {_shown(FOLDER)}; there is none of that name{meant}")


def _shown(path: Path) -> Path:
    """``path`` as one types it: from the folder that the command runs in, where it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
