"""A tracker that cannot harm the run: one that fails is warned about once and left, one that hangs is not waited for.

Each tracker lives in a thread of its own, with a queue before it. So an optimizer step never waits for a network, and
a package that keeps something for each thread (MLflow, trackio) sees one thread only.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fsdp_lab.run.trackers.protocol import Status, Tracker

_log = logging.getLogger(__name__)
_START_S = 60.0  # importing such a package takes seconds, which should not fall into the first steps
_FINISH_S = 15.0  # less than what a launcher leaves a rank that was told to stop
_WAITING = 10_000  # calls that may wait for a tracker; what comes then is lost

_Call = Callable[[Tracker], None]


class Guarded:
    """Makes a tracker in a thread, gives it its settings, and passes on what comes until it fails."""

    def __init__(
        self, name: str, make: Callable[[], Tracker], values: Mapping[str, Any], start_s: float = _START_S
    ) -> None:
        self._name = name
        self._calls: queue.Queue[_Call | None] = queue.Queue(_WAITING)
        self._status: Status = "failed"
        self._begun, self._ended = threading.Event(), threading.Event()
        threading.Thread(target=self._work, args=(make, values), name=f"tracker {name}", daemon=True).start()
        self._begun.wait(start_s)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Have numbers stored; returns at once."""
        self._put(lambda tracker: tracker.log(values, step))

    def finish(self, status: Status, patience_s: float = _FINISH_S) -> None:
        """Have what is waiting stored and the tracker ended; warns when that takes longer than ``patience_s``."""
        self._status = status
        self._put(None)
        if not self._ended.wait(patience_s):
            what = "not finished after %g s; left alone, its last numbers may be missing"
            _log.warning(f"tracker %s: {what}", self._name, patience_s)

    def _put(self, call: _Call | None) -> None:
        if self._ended.is_set():
            return
        with contextlib.suppress(queue.Full):  # it hangs; finish will say so
            self._calls.put_nowait(call)

    def _work(self, make: Callable[[], Tracker], values: Mapping[str, Any]) -> None:
        try:
            tracker = make()
            tracker.store_init_configuration(values)
            self._begun.set()
            while (call := self._calls.get()) is not None:
                call(tracker)
            tracker.finish(self._status)
        except BaseException as error:  # also a package's SystemExit: it ends the tracker, never the training
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            _log.warning("tracker %s ended, the training goes on: %s", self._name, what)
        finally:
            self._begun.set()
            self._ended.set()
