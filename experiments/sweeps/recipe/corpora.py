"""Corpora by name, as recipes and their models say them."""

from __future__ import annotations

from typing import Any

from experiments.sweeps.recipe.trainers import CORPORA_FOLDER
from fsdp_lab.data.sources.corpora import CORPORA


def corpus_settings(name: Any, complaints: list[str], where: str = "corpus") -> dict[str, Any]:
    """The trainer's settings for a corpus, which is embedded, one that ``fsdp-lab data build`` knows, or a path."""
    if not isinstance(name, str) or not name:
        complaints.append(f"{where}: got {name!r}, wants embedded, {', '.join(CORPORA)} or a path")
        return {}
    if name == "embedded":
        return {"data_path": None}
    return {"data_path": str(CORPORA_FOLDER / f"{name}.jsonl.gz") if name in CORPORA else name}
