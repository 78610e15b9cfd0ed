"""The interface of every compression method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core import nonfinite
from comm_compress.core.encoded import Encoded, Layout
from comm_compress.core.rounds import AllGatherRounds, Exchange, Gather, Reduced, ReduceScatterRounds
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels.elements.residual.tensors import Residual


class Compressor(ABC):
    """A way to run compressed collectives. Knows no process group and no devices.

    A collective is a generator of requests (`comm_compress.core.rounds`), so a method may take as many rounds as
    its paper needs. Most methods need one exchange of encoded rows: they derive from `Codec` and implement
    `encode` and `decode`.

    Laws that hold for every method, tested over one table of all of them (`comm_compress.conformance`):

    - the bytes counted are the bytes sent;
    - a NaN or an infinity in a row makes its destination's total not finite;
    - zeros give zeros, and empty rows (n = 0) empty results;
    - ``total`` is the sum over ranks of their `contribution` (where `Traits.additive`).
    """

    traits: Traits = Traits()
    """What is true of it: where it may be used, and which laws it obeys."""
    name: str = ""
    """The registry's name, set by `comm_compress.make`."""
    settings: dict[str, Any]
    """The configuration with every default filled in, set by `comm_compress.make`."""

    @abstractmethod
    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """The rounds of one reduce-scatter of ``rows`` ``[W, n]`` (fp32, bf16 or fp16), row d for rank d.

        ``rows`` is not written to.
        """

    @abstractmethod
    def contribution(self, sent: Any) -> Tensor:
        """Return what this rank added to every rank's total, ``[W, n]``: row d went to rank d."""

    def subtract_contribution(self, target: Tensor, sent: Any) -> Tensor:
        """Return ``target - contribution(sent)``, in ``target``'s memory (float32 ``[W, n]``): the new residual."""
        return target.sub_(self.contribution(sent))

    def reduce_scatter_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> ReduceScatterRounds:
        """The rounds of one reduce-scatter of the residual's target; what it leaves out goes to ``residual.new``."""
        target = kernels.residual(rows).write_target(rows, residual)
        reduced: Reduced = yield from self.reduce_scatter(target, state)
        self.subtract_contribution(target, reduced.sent)
        return reduced

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """The rounds of one all-gather of ``row`` ``[n]``; returns all ranks' rows, ``[W, n]``."""
        raise ValueError(f"{self.name}: not for all-gather")

    def mark(self, rows: Tensor) -> Tensor:
        """Is all of the input ``rows`` ``[W, n]`` finite (bool scalar)? If not, it is marked, for every rank to see."""
        return nonfinite.mark(rows)

    def check_names(self, names: Collection[str]) -> None:  # noqa: B027  (most have nothing to check)
        """ValueError when a setting is about parameters by name, and a model of these full ``names`` has no such."""

    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int | None:
        """Bytes that one rank sends to others in a reduce-scatter of ``[world, n]``; None when the data decide."""
        return None


class Codec(Compressor):
    """Turns rows of floats into rows of bytes and back: one exchange makes a reduce-scatter, one gather an all-gather.

    A method of fixed size says what a row consists of (`layout`), and fills an `Encoded` with it. One whose
    rows differ in length sets ``fixed_size = False`` and returns `Encoded.ragged`.
    """

    fixed_size: bool = True
    """Is the byte count a function of n alone?"""
    plain: bool = False
    """Are an encoded row's bytes those of the row itself?"""

    @abstractmethod
    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Encode float rows ``[R, n]`` (fp32, bf16 or fp16), each for another receiver."""

    @abstractmethod
    def decode(self, encoded: Encoded) -> Tensor:
        """The rows again, ``[R, n]``, in float32 or in a narrower dtype that holds them exactly."""

    def encode_and_decode(self, rows: Tensor, state: State) -> tuple[Encoded, Tensor]:
        """Encode ``rows``, and return what the message stands for, too, as `decode` would.

        A method that need not read its own message to know overrides this.
        """
        encoded = self.encode(rows, state)
        return encoded, self.decode(encoded)

    def decode_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Decode to ``out`` ``[R, n]``, of any float dtype, and return it."""
        return out.copy_(self.decode(encoded))

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """The sum of the decoded rows, accumulated in rank order, to ``out`` (float32 ``[n]``); returns it."""
        kernels.casts(out).sum_rows(self.decode(encoded), out)
        return out

    def add_into(self, encoded: Encoded, out: Tensor, memory: Tensor) -> None:
        """Add the decoded row, the only one, to ``out`` ``[n]`` of any float dtype.

        ``memory`` float32 ``[n]`` may be used meanwhile.
        """
        out += self.decode_into(encoded, memory.unsqueeze(0))[0]

    def decode_sum(self, encoded: Encoded) -> Tensor:
        """Return the sum of the decoded rows, as `sum_into` computes it, in new memory (float32 ``[n]``)."""
        return self.sum_into(encoded, torch.empty(encoded.n, device=encoded.buffer.device))

    def encode_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> Encoded:
        """Encode ``residual.target(rows)`` and leave what that loses in ``residual.new``.

        Three passes over memory; a method with a fused kernel needs one.
        """
        target = kernels.residual(rows).write_target(rows, residual)
        encoded = self.encode(target, state)
        self.subtract_contribution(target, encoded)
        return encoded

    def encode_change(self, row: Tensor, expected: Tensor, memory: Tensor, state: State) -> Encoded | None:
        """Encode ``row - expected``, ``[n]`` each and taken as float32, as one row; None when it is not finite.

        ``memory`` float32 ``[n]`` may be used meanwhile.
        """
        if row.numel() and not bool(kernels.finite(row).difference(row, expected, memory)):
            return None
        return self.encode(memory.unsqueeze(0), state)

    def layout(self, n: int, dtype: torch.dtype) -> Layout:
        """The fields of one encoded row of ``n`` elements of ``dtype`` (methods of fixed size)."""
        raise AssertionError(f"{self.name or type(self).__name__} has rows of variable size, or lacks its layout")

    def received(self, row: Tensor, n: int) -> Encoded:
        """Return an encoded row of ``n`` float32 elements from its bytes alone (uint8, aligned like new memory)."""
        if self.fixed_size:
            return Encoded(row.unsqueeze(0), self.layout(n, torch.float32), n)
        return Encoded(row.unsqueeze(0), None, n, lengths=(row.numel(),))

    def wire_bytes(self, n: int, dtype: torch.dtype = torch.float32) -> int | None:
        """Return the bytes of one encoded row of ``n`` elements; None when the data decide."""
        return self.layout(n, dtype).row_bytes if self.fixed_size else None

    def traffic(self, n: int, world: int, dtype: torch.dtype = torch.float32) -> int | None:
        """An exchange sends one encoded row to each other rank; None when the data decide how long rows are."""
        row = self.wire_bytes(n, dtype)
        return None if row is None else (world - 1) * row

    def contribution(self, sent: Encoded) -> Tensor:
        """Receivers decode the message as it is, so this rank contributed what it decodes to."""
        return self.decode(sent)

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Encode the rows, exchange them, and sum what arrives."""
        return (yield from self.exchange(self.encode(rows, state), state))

    def reduce_scatter_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> ReduceScatterRounds:
        """Encode the residual's target and exchange it; the new residual is ready before anything is sent."""
        return (yield from self.exchange(self.encode_with_feedback(rows, residual, state), state))

    def exchange(self, message: Encoded, state: State) -> ReduceScatterRounds:
        """Exchange a message that is encoded already, and sum what arrives."""
        received = yield Exchange(message)
        return Reduced(self.sum_into(received, state.result((message.n,), message.buffer.device)), message)

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """Encode the row, gather all ranks' encoded rows, and decode them."""
        message, out = self.encode(row.unsqueeze(0), state), state.output
        received = yield Gather(message, out if self.plain else None)
        if out is None or self.plain:
            return self.decode(received)
        return self.decode_into(received, out.view(state.world, row.numel()))
