"""Rows and the garbage collector, which looks for cycles among millions of objects that have none.

A report of 50,000 rows has a million objects when all rows are read, and drawing makes cycles all the time: each full
search goes through all of them again.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_disabled() -> Iterator[None]:
    """Without the collector. For what makes many objects and no cycles: rows refer to nothing that refers to them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def objects_frozen() -> Iterator[None]:
    """What there is when this begins is passed over by the collector until it ends; what is made meanwhile is not.

    Nothing is done where the process has set objects apart already: `gc.unfreeze` would take back those, too.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
