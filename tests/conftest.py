"""Hypothesis draws the same examples every time (`--hypothesis-profile=explore`: new ones). Slow tests: `-m slow`."""

import contextlib
import functools
import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import order
from tests.distributed import close_ranks, preload

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", max_examples=1000)
settings.load_profile("fixed")

gc.disable()  # until all is imported and collected: it would take a seventh of that time

# Idle threads of torch's that wait at full speed for more to do would take the cores that other workers' tests need:
# twice the processor time. Said before torch is imported, and for whatever the tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# gloo's thread is woken by a message, displaces the thread that holds the lock that it needs, and asks for that at full
# speed until its time is over: eight million times in a file of tests with ranks. Batch processes displace nobody when
# they wake up; what the tests start is one, too.
if hasattr(os, "SCHED_BATCH"):
    with contextlib.suppress(OSError):  # where the scheduler may not be asked
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

# Bytecode is kept, here and in whatever the tests start, where the environment says otherwise, too: every worker, the
# server of each and every program would compile 6 MB of sources again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and what the tests start would, too


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write_seconds", action="store_true", help="say how long each file took: tests/order.py")


def pytest_configure(config: pytest.Config) -> None:
    if _is_worker(config):
        return
    config.option.loadscopereorder = False  # pytest-xdist's own order of files: those with the most tests first
    if config.option.write_seconds:
        config.pluginmanager.register(order.Stopwatch())


def _is_worker(config: pytest.Config) -> bool:
    """Is this one of several processes that run tests side by side?"""
    return hasattr(config, "workerinput")


@functools.cache
def _no_namespaces() -> str | None:
    from experiments.network.namespaces import unavailable  # only where a test asks: it makes one

    return unavailable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("netns") is not None and (why := _no_namespaces()):
        pytest.skip(why)


@pytest.fixture(scope="module", autouse=True)
def _ranks_of_one_file() -> Iterator[None]:
    """Ranks that `run_ranks` has started are for the tests of one file."""
    yield
    close_ranks()


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: millions of objects that the garbage collector need not see."""
    gc.collect()
    gc.freeze()
    gc.enable()


STARTS_RANKS = ("run_ranks", "run_program", "train_all", "forked_on_terminal", "Lab")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    modules = {item.module for item in items if isinstance(item, pytest.Function)}
    for name in sorted(m.__name__ for m in modules if any(hasattr(m, starts) for starts in STARTS_RANKS)):
        preload(name)  # each rank would import the file of its function
    if "slow" not in str(config.option.markexpr):
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason="takes minutes: -m slow"))
    if _is_worker(config):
        order.longest_first(items, order.read())
