"""Which models learn by filling in masked tokens, as BERT does, instead of guessing the next one."""

from __future__ import annotations

from pathlib import Path

from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.presets import PRESETS
from fsdp_lab.settings.reading.strict import load_json

MASKED = ("bert",)
"""Their families, as config.json's model_type names them."""
_LARGEST_FILE = 16 << 20  # bytes of a config.json; a larger one is refused where the model is built


def is_masked(model: ModelConfig) -> bool:
    """Is it a masked model, by its preset or by its folder's config.json?

    A folder that cannot be read is none: whoever builds the model says what is wrong with it.
    """
    return family_of(model) in MASKED


def family_of(model: ModelConfig) -> str | None:
    """The family of a model, by its preset or by its folder's config.json; None where neither tells."""
    if model.model_dir is not None:
        return family_of_folder(Path(model.model_dir))
    preset = PRESETS.get(str(model.model))
    return None if preset is None else preset.family


def folder_is_masked(folder: Path) -> bool:
    """Does the config.json in ``folder`` say that it is a masked model?"""
    return family_of_folder(folder) in MASKED


def family_of_folder(folder: Path) -> str | None:
    """The model_type of the config.json in ``folder``; None where there is none that can be read."""
    path = folder / "config.json"
    try:
        saved = load_json(path.read_bytes()) if path.stat().st_size <= _LARGEST_FILE else None
    except (OSError, ValueError):
        return None
    family = saved.get("model_type") if isinstance(saved, dict) else None
    return family if isinstance(family, str) else None
