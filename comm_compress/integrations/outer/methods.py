"""Which methods carry pseudo-gradients, and how."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import Literal, get_args

from comm_compress.core.compressor import Compressor
from comm_compress.integrations import allreduce
from comm_compress.integrations.allreduce import AllReduceRounds
from comm_compress.integrations.replicas.messages import all_reduce_of_messages, codec_of
from comm_compress.registry import AnyMethod, chosen

How = Literal["reduce_scatter", "all_gather", "auto"]
"""By way of each part's owner, or from everyone to everyone; "auto": as fewer bytes are sent."""
GRADIENT_METHOD = "gradient_method"
_FLOAT32 = 4  # bytes of an element of the means


class Methods:
    """How pseudo-gradients, or gradients, are exchanged: both halves' methods, and the rounds. ValueErrors name the
    argument, the first one as ``name``.

    ``elements``: how many a rank exchanges with its ``world - 1`` likes, for "auto".
    """

    def __init__(
        self,
        method: AnyMethod | None,
        all_gather: AnyMethod | None,
        exchange: How,
        world: int,
        elements: int = 0,
        name: str = "method",
    ) -> None:
        self.reduce, self.gather = chosen(name, method), chosen("all_gather", all_gather)
        if exchange not in get_args(How):
            raise ValueError(f'exchange = {exchange!r}: must be "reduce_scatter", "all_gather" or "auto"')
        is_less = exchange == "auto" and self._everywhere_is_less(world, elements)
        self._everywhere = is_less or exchange == "all_gather"
        if self.gather is not None and (self.reduce is None or self._everywhere):
            raise ValueError(
                f"all_gather = {self.gather.name}: is the second half of an exchange by reduce_scatter with a method; "
                + ("messages that go to everyone have none" if self.reduce is not None else "method is not given")
            )
        if self.reduce is not None:
            allreduce.check(name, self.reduce, self.gather, world)
            self.check(self.reduce)

    def _everywhere_is_less(self, world: int, elements: int) -> bool:
        """Do ``world`` whole messages have fewer bytes than one, and the exact means on their way back?"""
        if self.reduce is None or self.gather is not None:
            return False
        try:
            row = math.ceil(elements / world)
            message = codec_of(self.reduce).wire_bytes(row)
        except ValueError:
            return False
        return message is not None and world * message < message + _FLOAT32 * row

    @property
    def rounds(self) -> AllReduceRounds:
        """The function that makes the rounds of one exchange between replicas."""
        return all_reduce_of_messages if self._everywhere else allreduce.all_reduce

    @property
    def rounds_unheard(self) -> AllReduceRounds:
        """The same of a virtual replica whose result, equal to the first one's, nobody looks at."""
        return partial(all_reduce_of_messages, heard=False) if self._everywhere else allreduce.all_reduce

    def check(self, reduce: Compressor) -> None:
        """ValueError when messages are to go to everyone and ``reduce`` has none that everyone could add up."""
        if self._everywhere:
            codec_of(reduce)

    def of_gradients(self, method: AnyMethod | None, world: int) -> Methods:
        """What exchanges the gradients of what goes by them: ``method`` by way of owners, back as pseudo-gradients come
        back; None: as pseudo-gradients are."""
        if method is None:
            return self
        there = chosen(GRADIENT_METHOD, method)
        back = None if there is None else self.gather
        return Methods(there, back, "reduce_scatter", world, name=GRADIENT_METHOD)


def gradient_methods(
    methods: Methods, gradient_method: AnyMethod | None, moving: Collection[str], others: Collection[str], world: int
) -> Methods:
    """What exchanges gradients of ``others``, where ``methods`` exchange pseudo-gradients of ``moving``, both by name.

    ValueError for a ``gradient_method`` where nothing goes by its gradients, and for ``layers`` that fit no name."""
    if gradient_method is not None and not others:
        raise ValueError(f"{GRADIENT_METHOD}: nothing goes by its gradients; name it in by_gradient")
    of_gradients, everything = methods.of_gradients(gradient_method, world), [*moving, *others]
    is_one = of_gradients is methods
    for method, names in (
        (methods.reduce, everything if is_one else moving),
        (of_gradients.reduce, everything if is_one else others),
        (methods.gather, everything),
    ):
        if method is not None:
            method.check_names(names)
    return of_gradients


def check(
    method: AnyMethod | None,
    all_gather: AnyMethod | None = None,
    exchange: How = "reduce_scatter",
    ranks: int = 2,
    gradient_method: AnyMethod | None = None,
) -> None:
    """ValueError, which names the argument of `attach`, when these methods cannot carry pseudo-gradients, or gradients
    of what goes by them."""
    Methods(method, all_gather, exchange, ranks).of_gradients(gradient_method, ranks)
