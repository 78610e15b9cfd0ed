"""A registry that forgets what an entry's plugin registered."""

from tests.experiments.judge.conftest import fresh_registry

__all__ = ["fresh_registry"]
