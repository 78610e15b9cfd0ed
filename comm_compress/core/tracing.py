"""What a torch.profiler trace shows of a collective. Nothing is made, and next to nothing paid, when none is recorded.

    comm_compress::reduce_scatter (UNIT)     a collective; one that goes on behind computation has two, where it
      comm_compress::encode                  starts and where it is waited for
      comm_compress::wire                    posting messages, and waiting for them
      comm_compress::decode
      comm_compress::sent (...)              a mark: what this rank sent, as the ledger has it

Numbers are part of a span's name, because a trace keeps nothing else that a program may add.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch.profiler import record_function

PREFIX = "comm_compress::"
_recording: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
_NOTHING = nullcontext()
Method = TypeVar("Method", bound=Callable[..., Any])


class Sent(NamedTuple):
    """One finished collective: ``raw`` bytes had to reach other ranks, ``sent`` did, of this rank's."""

    op: str
    unit: str
    raw: int
    sent: int


def span(name: str) -> AbstractContextManager[Any]:
    """Show what happens inside as ``comm_compress::name`` in the trace, if one is being recorded."""
    return record_function(PREFIX + name) if _recording() else _NOTHING


def spanned(op: str) -> Callable[[Method], Method]:
    """Decorate a method that runs (a part of) the collective ``op`` for the unit of its object's ``state``."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def inside(self: Any, *args: Any, **kwargs: Any) -> Any:
            with span(f"{op} ({self.state.unit})"):
                return method(self, *args, **kwargs)

        return inside  # type: ignore[return-value]

    return decorate


def mark_sent(sent: Sent) -> None:
    """Put a moment into the trace that says what was sent."""
    if _recording():
        with record_function(f"{PREFIX}sent ({sent.op} of {sent.unit}: {sent.raw} B raw, {sent.sent} B sent)"):
            pass
