"""Activation checkpointing without sending twice: what collectives gave in the first forward is given again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from torch import Tensor


class _Kept(NamedTuple):
    place: str
    output: Tensor
    version: int


class _Recording(list[_Kept]):
    """Keeps what the first forward received."""


class _Replaying:
    """Gives it again, in the same order."""

    def __init__(self, kept: _Recording) -> None:
        self._kept = iter(kept)

    def next(self, place: str) -> Tensor:
        kept = next(self._kept, None)
        if kept is None or kept.place != place:
            was = "nothing more" if kept is None else repr(kept.place)
            raise RuntimeError(
                f"recomputation: the forward is recomputed differently: {place!r} asks for its result where "
                f"the first forward ran {was}"
            )
        if kept.output._version != kept.version:
            raise RuntimeError(
                f"recomputation: what {place!r} gave in the first forward was changed in place afterwards and cannot "
                "be given again; use an operation that is not in place"
            )
        return kept.output.detach()


class Recomputation:
    """What is kept for the recomputations under way in this thread (autograd's threads recompute on CUDA)."""

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def _open(self) -> list[_Recording | _Replaying]:
        if not hasattr(self._local, "open"):
            self._local.open = []
        innermost: list[_Recording | _Replaying] = self._local.open
        return innermost

    def once(self, place: str, send: Callable[[], Tensor]) -> Tensor:
        """Return what ``send`` gives, or gave when the forward that is being recomputed ran first."""
        if not (nested := self._open):
            return send()
        replaying = next((tape for tape in reversed(nested) if isinstance(tape, _Replaying)), None)
        output = replaying.next(place) if replaying is not None else send()
        for tape in nested:
            if isinstance(tape, _Recording):
                alias = output.detach()  # with the same counter of changes in place
                tape.append(_Kept(place, alias, alias._version))
        return output

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of one checkpointed forward, and of its recomputations."""
        kept = _Recording()
        return self._within(lambda: kept), _Again(lambda: self._within(lambda: _Replaying(kept)))

    @contextmanager
    def _within(self, tape: Callable[[], _Recording | _Replaying]) -> Iterator[None]:
        self._open.append(tape())
        try:
            yield
        finally:
            self._open.pop()


class _Again(AbstractContextManager[None]):
    """A context that may be entered several times, one after another: a graph that is kept is recomputed each time."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self._now: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        self._now = self._make()
        self._now.__enter__()

    def __exit__(self, *reason: object) -> None:
        assert self._now is not None
        self._now.__exit__(*reason)  # type: ignore[arg-type]
