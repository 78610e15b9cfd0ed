"""What a compressor may ask of the network.

A compressed collective is a generator: it yields requests and is resumed with their answers, and it
returns the result. So a method knows no process group, may take as many rounds as its paper needs
(one exchange; a scale agreed first; a sketch, then exact values), and the same code runs over real
ranks (`transport`) and over virtual ones (`simulate`). Every byte passes through whoever drives it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from comm_compress.encoded import Encoded


@dataclass(frozen=True)
class Exchange:
    """Row d goes to rank d. Answer: an `Encoded` of W rows, row r from rank r."""

    message: Encoded


@dataclass(frozen=True)
class Gather:
    """The message's single row goes to every rank. Answer: an `Encoded` of W rows, row r from rank r."""

    message: Encoded


@dataclass(frozen=True)
class Sum:
    """Reduce-scatter in the encoded domain: row d of all ranks is summed, in ``dtype``, at rank d.

    Answer: an `Encoded` of one row. The caller must know that the sum cannot overflow ``dtype``.
    """

    message: Encoded
    dtype: Any


@dataclass(frozen=True)
class AllReduce:
    """Answer: the elementwise ``op`` of ``tensor`` over all ranks (same shape and dtype)."""

    tensor: Tensor
    op: Literal["max", "sum"]


Request = Exchange | Gather | Sum | AllReduce


class Reduced(NamedTuple):
    """The outcome of one compressed reduce-scatter on one rank.

    ``total``: float32 ``[n]``, the sum over ranks of this rank's row (the mean belongs to FSDP2).
    ``sent``: this rank's own contribution as the receivers decode it, for error feedback.
    """

    total: Tensor
    sent: Encoded


ReduceScatterRounds = Generator[Request, Any, Reduced]
AllGatherRounds = Generator[Request, Any, Tensor]
