"""Files that register methods are loaded in tests as if for the first time, and leave nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import comm_compress as cc
from comm_compress import registry


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, what is registered and imported from such files is forgotten at the end."""
    cc.available()
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("judged_")]:
        del sys.modules[name]
