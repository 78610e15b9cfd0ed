"""What each thread of the program is doing at each moment, derived from its nested spans."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Literal, NamedTuple

from fsdp_lab.trace.reading.chrome import Span, Thread

Class = Literal["compute", "communication", "compression"]
CLASSES: tuple[Class, ...] = ("compute", "communication", "compression")
_COLLECTIVE = re.compile(r"comm_compress::(reduce_scatter|all_gather|all_reduce|outer|optimizer) \(.*\)")
_STAGES: dict[str, Class] = {
    "comm_compress::encode": "compression",
    "comm_compress::wire": "communication",
    "comm_compress::decode": "compression",
}
_STOCK = ("c10d::", "_c10d_functional::")
IN_FLIGHT = ("gloo:", "nccl:")  # a backend's own spans: they last as long as the transfer, and are not nested


class Label(NamedTuple):
    """What a thread does (``kind`` None: Python between operators, or waiting), and for which compressed collective."""

    kind: Class | None = None
    op: str | None = None


class Stretch(NamedTuple):
    """The time from ``start`` until ``end``, in which a thread did what ``label`` says."""

    start: int
    end: int
    label: Label


NOTHING = Label()


def label(span: Span, around: Label) -> Label:
    """The label of ``span``, which lies inside a span with the label ``around``."""
    if collective := _COLLECTIVE.fullmatch(span.name):
        return Label("compression", collective[1])
    if span.name in _STAGES:
        return Label(_STAGES[span.name], around.op)
    if around.kind in ("communication", "compression"):
        return around
    if span.name.startswith(_STOCK):
        return Label("communication")
    if span.name.startswith("FSDP::"):  # hooks in Python, that wait
        return NOTHING
    return Label("compute") if span.category == "cpu_op" else around


class Threads:
    """The stretches of every thread; where spans are nested, the innermost one decides."""

    def __init__(self, spans: Iterable[Span]) -> None:
        nested: dict[Thread, list[Span]] = {}
        for span in spans:
            if span.category in ("cpu_op", "user_annotation") and not span.name.startswith(IN_FLIGHT):
                nested.setdefault(span.thread, []).append(span)
        self.stretches = {thread: _stretches(some) for thread, some in nested.items()}

    def at(self, thread: Thread, moment: int) -> Label:
        """What ``thread`` was doing at ``moment``."""
        stretches = self.stretches.get(thread, [])
        index = bisect_right(stretches, moment, key=lambda stretch: stretch.start) - 1
        return stretches[index].label if index >= 0 and moment < stretches[index].end else NOTHING


def _stretches(spans: Iterable[Span]) -> list[Stretch]:
    """The stretches of one thread, from its spans in order of start (of two that start together, the longer first)."""
    stretches: list[Stretch] = []
    around: list[tuple[int, Label]] = []  # open spans: their end and label, the innermost last
    now = 0

    def until(moment: int) -> None:
        nonlocal now
        if around and around[-1][1] != NOTHING and moment > now:
            stretches.append(Stretch(now, moment, around[-1][1]))
        now = max(now, moment)

    def close(before: int | None) -> None:
        while around and (before is None or around[-1][0] <= before):
            until(around[-1][0])
            around.pop()

    for span in spans:
        close(span.start)
        until(span.start)
        end, outer = around[-1] if around else (span.end, NOTHING)
        around.append((min(span.end, end), label(span, outer)))
    close(None)
    return stretches
