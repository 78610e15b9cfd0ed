"""What several folders of tests use."""

from __future__ import annotations

import pytest

from tests.forked_namespaces import fork_ranks


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks behind emulated links are forked."""
    fork_ranks(monkeypatch)
