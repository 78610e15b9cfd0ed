"""Programs whose flags are settings: their help, and what is wrong with flags, come before the program is imported.

A program that trains or reads models imports torch and transformers, which takes seconds; its flags take none of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from fsdp_lab.settings.user_errors import user_errors

SETTINGS = {
    "fsdp_lab.validate": "fsdp_lab.settings.models.saved.ValidateConfig",
    "fsdp_lab.chat": "fsdp_lab.settings.models.saved.ChatConfig",
    "fsdp_lab.eagle.train": "fsdp_lab.eagle.draft.config.EagleConfig",
    "fsdp_lab.eagle.evaluate": "fsdp_lab.eagle.draft.finished.EvaluateConfig",
    "fsdp_lab.eagle.draft.export": "fsdp_lab.eagle.draft.finished.ExportConfig",
}
"""By program: the class of its settings."""


def read_first(module: str, words: Sequence[str]) -> None:
    """Ends the process where these words ask a program of `SETTINGS` for its help, or are no settings of it (exit code
    2): as the program would, before it is imported. Else returns, and the program reads them again.
    """
    if module not in SETTINGS:
        return
    from fsdp_lab.settings.refusing.early import checked

    place, _, name = SETTINGS[module].rpartition(".")
    with user_errors(module):
        checked(getattr(importlib.import_module(place), name), words, module)
