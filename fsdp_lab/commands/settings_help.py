"""The help of programs whose flags are settings: printed from the settings, without importing the program.

A program that trains or reads models imports torch and transformers, which takes seconds; its flags take none of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

SETTINGS = {
    "fsdp_lab.validate": "fsdp_lab.settings.models.saved.ValidateConfig",
    "fsdp_lab.chat": "fsdp_lab.settings.models.saved.ChatConfig",
    "fsdp_lab.eagle.train": "fsdp_lab.eagle.draft.config.EagleConfig",
    "fsdp_lab.eagle.evaluate": "fsdp_lab.eagle.draft.finished.EvaluateConfig",
    "fsdp_lab.eagle.draft.export": "fsdp_lab.eagle.draft.finished.ExportConfig",
}
"""By program: the class of its settings."""


def asked_for(module: str, words: Sequence[str]) -> bool:
    """Do these words ask a program of `SETTINGS` for its help?"""
    return module in SETTINGS and not {"-h", "--help"}.isdisjoint(words)


def show(module: str) -> None:
    """Print what ``--help`` of the program prints. Ends the process, as that does."""
    from fsdp_lab.settings.reading.cli import read

    place, _, name = SETTINGS[module].rpartition(".")
    read(getattr(importlib.import_module(place), name), ["--help"], module)
