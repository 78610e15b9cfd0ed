"""Hypothesis draws the same examples every time (`--hypothesis-profile=explore`: new ones). Slow tests: `-m slow`."""

import functools
import gc
import os
import signal

import pytest
from hypothesis import settings

from tests.distributed import preload

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", max_examples=1000)
settings.load_profile("fixed")


# Idle threads of torch's that wait at full speed for more to do would take the cores that other workers' tests need:
# twice the processor time. Said before torch is imported, and for whatever the tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and what the tests start would, too


@functools.cache
def _no_namespaces() -> str | None:
    from experiments.network.namespaces import unavailable  # only where a test asks: it makes one

    return unavailable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("netns") is not None and (why := _no_namespaces()):
        pytest.skip(why)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: millions of objects that the garbage collector need not see."""
    gc.collect()
    gc.freeze()


STARTS_RANKS = ("run_ranks", "run_program", "train_all", "forked_on_terminal", "Lab")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    modules = {item.module for item in items if isinstance(item, pytest.Function)}
    for name in sorted(m.__name__ for m in modules if any(hasattr(m, starts) for starts in STARTS_RANKS)):
        preload(name)  # each rank would import the file of its function
    if "slow" not in str(config.option.markexpr):
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason="takes minutes: -m slow"))
