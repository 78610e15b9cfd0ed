"""The interface of every compression method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from comm_compress.encoded import Encoded, Layout
from comm_compress.rounds import AllGatherRounds, Exchange, Gather, Reduced, ReduceScatterRounds
from comm_compress.state import State


class Compressor(ABC):
    """Turns rows of floats into rows of bytes and back. Knows no ranks and no devices.

    A method states its mathematics in four flags, says how many bytes a row takes (`layout`), and
    implements `encode` and `decode`. Methods that need more than one exchange override
    `reduce_scatter`; see `comm_compress.rounds`.

    Three laws hold for every method and are tested over one table of all of them:

    - the bytes of a row are ``wire_bytes(n)``, and a receiver needs nothing else;
    - a row that holds a NaN or an infinity decodes to a row that is not finite;
    - an all-zero row decodes to zeros, and an empty row (n = 0) to an empty one.
    """

    linear: bool = False
    """May encoded rows be summed before decoding?"""
    unbiased: bool = False
    """E[decode(encode(x))] = x?"""
    dense: bool = True
    """Does every element come back close to itself? Only such methods may carry parameters."""
    lossless: bool = False
    """decode(encode(x)) = x bit for bit?"""
    max_ranks: int | None = None
    """The largest world size the method is defined for; None: any."""

    name: str = ""
    """The registry's name, set by `comm_compress.make`."""
    settings: dict[str, Any]
    """The configuration with every default filled in, set by `comm_compress.make`."""

    @abstractmethod
    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The fields of one encoded row of ``n`` elements of ``dtype``."""

    @abstractmethod
    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Encode float rows ``[R, n]`` (fp32, bf16 or fp16), each for another receiver."""

    @abstractmethod
    def decode(self, encoded: Encoded) -> Tensor:
        """The rows again, ``[R, n]``, in float32 or in a narrower dtype that holds them exactly."""

    def decode_sum(self, encoded: Encoded) -> Tensor:
        """The float32 sum of the decoded rows, ``[n]``, accumulated in rank order."""
        return torch.sum(self.decode(encoded), 0, dtype=torch.float32)

    def subtract_decoded(self, target: Tensor, sent: Encoded) -> Tensor:
        """``target - decode(sent)`` for what ``target`` was encoded to, in ``target``'s memory (float32 ``[R, n]``)."""
        return target.sub_(self.decode(sent))

    def wire_bytes(self, n: int, dtype: torch.dtype = torch.float32) -> int:
        """Bytes of one encoded row of ``n`` elements."""
        return self.layout(n, dtype).row_bytes

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """The rounds of one reduce-scatter of ``rows`` ``[W, n]``, row d for rank d."""
        message = self.encode(rows, state)
        received = yield Exchange(message)
        return Reduced(self.decode_sum(received), message)

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """The rounds of one all-gather of ``row`` ``[n]``; returns all ranks' rows, ``[W, n]``."""
        received = yield Gather(self.encode(row.unsqueeze(0), state))
        return self.decode(received)
