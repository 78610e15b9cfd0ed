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
    if model.model_dir is not None:
        return folder_is_masked(Path(model.model_dir))
    preset = PRESETS.get(str(model.model))
    return preset is not None and preset.family in MASKED


def folder_is_masked(folder: Path) -> bool:
    """Does the config.json in ``folder`` say that it is a masked model?"""
    path = folder / "config.json"
    try:
        saved = load_json(path.read_bytes()) if path.stat().st_size <= _LARGEST_FILE else None
    except (OSError, ValueError):
        return False
    return isinstance(saved, dict) and saved.get("model_type") in MASKED
