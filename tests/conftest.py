"""Hypothesis draws the same examples every time (`--hypothesis-profile=explore`: new ones). Slow tests: `-m slow`."""

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", max_examples=1000)
settings.load_profile("fixed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" not in str(config.option.markexpr):
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason="takes minutes: -m slow"))
