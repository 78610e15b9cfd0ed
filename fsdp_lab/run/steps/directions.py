"""What each direction sent and how long that took, since the last log line: numbers for trackers alone."""

from __future__ import annotations

import comm_compress as cc
from fsdp_lab.training.communication import Communication


class Directions:
    """The traffic of this rank by direction, a step, on the mean over the steps since it was last asked for.

    ``done``: steps before the first. ``are_timed``: virtual ranks' times are nobody's. Times of compared steps are in
    the mean, though the results row leaves them out: there they are a few of many, here at most one of each line.
    """

    def __init__(self, comm: Communication, done: int, are_timed: bool) -> None:
        self._comm, self._are_timed = comm, are_timed
        self._since = done, comm.by_op()

    def scalars(self, step: int) -> dict[str, float]:
        """The numbers until ``step``: bytes a step, milliseconds a step, ratios uncompressed / sent.

        A direction that no hook sees is left out until a profile has seen it, and its encoding takes no time.
        """
        (before, then), now = self._since, self._comm.by_op()
        self._since = step, now
        scalars: dict[str, float] = {}
        raw = sent = 0.0
        for op in self._comm.ops:
            numbers = self._hooked(now[op] - then[op], step - before) if self._comm.is_hooked(op) else self._stock(op)
            raw, sent = raw + numbers.get("raw_bytes", 0), sent + numbers.get("sent_bytes", 0)
            scalars |= {f"{op}/{name}": value for name, value in numbers.items()}
        if sent and not self._comm.must_be_watched:
            scalars["comm/ratio"] = raw / sent
        return scalars

    def _hooked(self, passed: cc.Totals, steps: int) -> dict[str, float]:
        if not passed.sent_bytes or steps < 1:
            return {}
        numbers = {"raw_bytes": passed.raw_bytes / steps, "sent_bytes": passed.sent_bytes / steps}
        if self._are_timed:
            times = {"encode": passed.encode_ms, "wire": passed.wire_ms, "decode": passed.decode_ms}
            numbers |= {f"{name}_ms": value / steps for name, value in times.items()}
        return numbers | {"ratio": passed.raw_bytes / passed.sent_bytes}

    def _stock(self, op: cc.Op) -> dict[str, float]:
        seen = self._comm.stock.ops[op]
        if not seen.sent_bytes:
            return {}
        numbers = {"raw_bytes": float(seen.raw_bytes), "sent_bytes": float(seen.sent_bytes)}
        if self._are_timed:
            numbers["wire_ms"] = seen.milliseconds
        return numbers | {"ratio": seen.raw_bytes / seen.sent_bytes}
