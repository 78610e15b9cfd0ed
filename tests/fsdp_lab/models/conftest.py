"""What the tests of models share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fsdp_lab.models.tiny import TINY, save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a saved tiny model of every kind, by its name."""
    folder = tmp_path_factory.mktemp("tiny")
    for name in TINY:
        save_tiny(name, folder)
    return folder
