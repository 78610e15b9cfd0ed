"""The garbage collector is told to pass rows over, and is afterwards as it was before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from analysis.rows.garbage import collector_disabled, objects_frozen


@pytest.fixture
def nothing_apart() -> Iterator[None]:
    """Without what the tests' server set apart, which is set apart again afterwards."""
    had = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if had:
        gc.freeze()


def test_the_collector_is_on_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="half a line"), collector_disabled():
        raise ValueError("half a line" if not gc.isenabled() else "the collector is on")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_disabled():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("nothing_apart")
def test_what_is_there_is_passed_over_and_taken_back() -> None:
    rows = [{"seed": [seed]} for seed in range(100)]
    with objects_frozen():
        assert gc.get_freeze_count() >= len(rows)
        assert not any(one is rows for one in gc.get_objects())
    assert gc.get_freeze_count() == 0
    assert any(one is rows for one in gc.get_objects())


@pytest.mark.usefixtures("nothing_apart")
def test_what_others_set_apart_stays_apart() -> None:
    gc.freeze()
    apart = gc.get_freeze_count()
    with objects_frozen():
        assert gc.get_freeze_count() <= apart
    assert 0 < gc.get_freeze_count() <= apart
    gc.unfreeze()
