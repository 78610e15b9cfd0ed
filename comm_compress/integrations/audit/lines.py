"""What an audit counts: a line for all calls that are alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Line:
    """All calls that agree in the first five fields; bytes are this rank's, or the sum over ranks.

    ``payload_bytes`` were handed over to collectives, ``sent_bytes`` leave for other ranks by the backend in use,
    ``ring_bytes`` would on a ring. ``code`` and ``stack`` are those of `callers.Caller`.
    """

    op: str
    group: str
    dtype: str
    where: str
    through: str
    code: str
    stack: tuple[str, ...]
    calls: int = 0
    payload_bytes: int = 0
    sent_bytes: int = 0
    ring_bytes: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """What all its calls agree in."""
        return self.op, self.group, self.dtype, self.where, self.through
