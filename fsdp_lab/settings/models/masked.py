"""Which models learn by filling in masked tokens, as BERT does, instead of guessing the next one."""

from __future__ import annotations

from pathlib import Path

from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.models.model_type import model_type
from fsdp_lab.settings.models.presets import family

MASKED = ("bert",)
"""Their families, as config.json's model_type names them."""


def is_masked(model: ModelConfig) -> bool:
    """Is it a masked model, by its preset or by its folder's config.json?

    A folder that cannot be read is none: whoever builds the model says what is wrong with it.
    """
    return family(model) in MASKED


def folder_is_masked(folder: Path) -> bool:
    """Does the config.json in ``folder`` say that it is a masked model?"""
    return model_type(folder) in MASKED
