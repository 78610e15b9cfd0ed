"""Short texts from rank to rank without a collective, in the store that the ranks met in.

The connection to it is our own. Under torchrun the launcher keeps the store, so that what a rank left there outlives
the rank. This works between machines, with any backend and from any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from fsdp_lab.ranks import processes

_TIMEOUT_S = 5.0


class Noticeboard:
    """Short texts by key. Opens its connection when first used; ``is_used`` False: a board that nobody else reads.

    ``is_gone`` says whether the store is known to be gone: connecting would be tried for seconds.
    """

    def __init__(self, is_used: bool = True, is_gone: Callable[[], bool] = processes.launcher_is_gone) -> None:
        self._is_used, self._is_gone = is_used, is_gone
        self._store: dist.Store | None = None
        self._one_at_a_time = threading.Lock()

    def put(self, key: str, text: str) -> bool:
        """Leave ``text`` for all ranks; False when the board is gone."""
        with self._one_at_a_time:
            try:
                if (store := self._open()) is not None:
                    store.set(key, text)
                return store is not None
            except (RuntimeError, KeyError):
                self._store = None
                return False

    def get(self, keys: list[str]) -> dict[str, str] | None:
        """Those of ``keys`` that are there, with their texts; None when the board is gone."""
        with self._one_at_a_time:
            try:
                store = self._open()
                return None if store is None else {key: store.get(key).decode() for key in keys if store.check([key])}
            except (RuntimeError, KeyError):
                self._store = None
                return None

    def _open(self) -> dist.Store | None:
        if self._is_gone():
            raise RuntimeError("the store is gone with the process that kept it")
        if self._store is None and self._is_used:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_TIMEOUT_S)
            )
            start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self._store = dist.PrefixStore(f"fsdp_lab/{start}", store)
        return self._store
