"""Reduce-scatters under way while the rest of backward computes, where FSDP2 does not see to it: on a CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from comm_compress.integrations.fsdp import _compat


class Reductions:
    """A model's reduce-scatters that have begun and not ended, at most ``limit`` at a time, the oldest first.

    FSDP2 reduces on a CUDA stream of its own; on a CPU it waits for each unit's reduce-scatter. Here a unit's messages
    are posted, backward goes on, and the total is decoded into FSDP2's own memory, which the gradients view, when
    there are too many under way or backward ends. On gloo the messages of two ranks are matched by the order
    in which they are posted, and what a collective sends after its first messages (rows whose lengths went ahead, later
    rounds) is posted as the next unit begins, or when it is finished. So when that is depends on how many units have
    come and on nothing else, above all not on what has arrived already: all ranks do the same.

    It takes memory: of each unit under way, FSDP2's copy of its gradients and a workspace.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._under_way: deque[Callable[[], None]] = deque()
        self._to_send: list[Callable[[], None]] = []
        """What sends the rows of collectives whose rows' lengths went ahead, in the order of posting."""
        self._backward = -1
        """The number of the backward that will call `finish` when it ends."""

    @property
    def are_under_way(self) -> bool:
        """Has a reduction begun that has not ended? What is sent now arrives after its messages."""
        return bool(self._under_way)

    def make_room(self) -> None:
        """Finish the oldest until one more may begin, and all that belong to another backward: one that raised an
        exception, or the one around a reentrant checkpoint's."""
        if self._backward != _compat.current_backward():
            self.finish()
        self._send_rows()
        while len(self._under_way) >= self.limit:
            self._finish_oldest()

    def send_later(self, send_rows: Callable[[], None]) -> None:
        """Have ``send_rows`` (`transport.Running.send_rows`) called when the next unit begins, or all are finished."""
        self._to_send.append(send_rows)

    def add(self, finish: Callable[[], None]) -> None:
        """Take charge of a reduction that has begun: ``finish`` is called before backward ends. Only inside one."""
        self._under_way.append(finish)
        if self._backward != (backward := _compat.current_backward()):
            _compat.when_backward_ends(self.finish)
            self._backward = backward

    def finish(self) -> None:
        """Finish all, in order. After an error (a peer that is gone) nothing is waited for any more."""
        self._send_rows()
        while self._under_way:
            self._finish_oldest()

    def _send_rows(self) -> None:
        to_send, self._to_send = self._to_send, []
        with self._forgetting():
            for send_rows in to_send:
                send_rows()

    def _finish_oldest(self) -> None:
        with self._forgetting():
            self._under_way.popleft()()

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Forget all collectives when what is done inside raises."""
        try:
            yield
        except BaseException:
            self._under_way.clear()
            self._to_send.clear()
            raise
