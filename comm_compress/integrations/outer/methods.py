"""Which methods carry pseudo-gradients, and how."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from comm_compress.core.compressor import Compressor
from comm_compress.integrations import allreduce
from comm_compress.integrations.allreduce import AllReduceRounds
from comm_compress.integrations.outer.messages import all_reduce_of_messages, codec_of
from comm_compress.registry import AnyMethod, chosen

How = Literal["reduce_scatter", "all_gather"]
"""By way of each part's owner, or from everyone to everyone."""


class Methods:
    """How pseudo-gradients are exchanged: both halves' methods, and the rounds. ValueErrors name the argument."""

    def __init__(self, method: AnyMethod | None, all_gather: AnyMethod | None, exchange: How, world: int) -> None:
        self.reduce, self.gather = chosen("method", method), chosen("all_gather", all_gather)
        if exchange not in ("reduce_scatter", "all_gather"):
            raise ValueError(f'exchange = {exchange!r}: must be "reduce_scatter" or "all_gather"')
        self._everywhere = exchange == "all_gather"
        if self.gather is not None and (self.reduce is None or self._everywhere):
            raise ValueError(
                f"all_gather = {self.gather.name}: is the second half of an exchange by reduce_scatter with a method; "
                + ("messages that go to everyone have none" if self.reduce is not None else "method is not given")
            )
        if self.reduce is not None:
            allreduce.check("method", self.reduce, self.gather, world)
            self.check(self.reduce)

    @property
    def rounds(self) -> AllReduceRounds:
        """The rounds of one exchange."""
        return all_reduce_of_messages if self._everywhere else allreduce.all_reduce

    @property
    def rounds_unheard(self) -> AllReduceRounds:
        """The same of a virtual replica whose result, equal to the first one's, nobody looks at."""
        return partial(all_reduce_of_messages, heard=False) if self._everywhere else allreduce.all_reduce

    def check(self, reduce: Compressor) -> None:
        """ValueError when messages are to go to everyone and ``reduce`` has none that everyone could add up."""
        if self._everywhere:
            codec_of(reduce)

    def check_names(self, names: Sequence[str]) -> None:
        """ValueError when a method's ``layers`` fit none of these names."""
        for method in (self.reduce, self.gather):
            if method is not None:
                method.check_names(names)
