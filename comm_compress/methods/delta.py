"""Parameters as changes since the last gather."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.compressor import Codec, Compressor
from comm_compress.encoded import ByteCount, Encoded
from comm_compress.registry import nested, register, require
from comm_compress.rounds import AllGatherRounds, Gather, ReduceScatterRounds
from comm_compress.state import State

DEFAULT_VALUES = {"method": "int4", "block_size": 2048}
WHOLE, CHANGE = 0, 1  # a row's first byte
FLAG_BYTES = 1
SYMBOL_HEAD = struct.Struct("<I")  # bytes of the coded symbols
LEAST = 1024  # elements that a table of frequencies is worth


@dataclass(frozen=True)
class DeltaConfig:
    """Settings of delta.

    ``mode``: "quantized" sends the change by the method ``values`` (a name or ``{"method": ...}``: one that may
    carry parameters or their changes, also with ``entropy``), "lossless" its entropy-coded distance in ulps.
    ``predict`` (quantized): that much of the last change is expected again, and only the rest is sent.
    """

    mode: Literal["quantized", "lossless"] = "quantized"
    values: Mapping[str, Any] | str = field(default_factory=lambda: dict(DEFAULT_VALUES))
    predict: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.predict < 1, "predict", self.predict, "at least 0 and less than 1")
        if self.mode == "lossless":
            require(self.values == DEFAULT_VALUES, "values", self.values, "left out with mode 'lossless'")
            require(self.predict == 0, "predict", self.predict, "0 with mode 'lossless'")


class Delta(Compressor):
    """Sends what changed since the last gather; every rank adds it to its replica of all ranks' rows.

    The replica is a second copy of the unit's whole unsharded parameters, in the dtype they are gathered in, on
    every rank (it gives back what ZeRO-3 saves on parameters), and part of the checkpointed state. All ranks
    hold the same one, since they apply the same bytes. The first gather sends whole rows, exactly; so does
    one whose change is not finite. A rank whose row is what it was, bit for bit, sends nothing: the second gather
    of a step costs 8 bytes a peer and brings the same parameters. Rows are ragged: nothing; or a flag byte,
    and the row's own bytes or the change.

    The gathered rows are the replica itself: read them, do not write to them.
    """

    for_gradients = False
    for_parameters = True

    def all_gather(self, row: Tensor, state: State) -> AllGatherRounds:
        """Send the change of this rank's row, apply those of all."""
        source = self._source(row, state)
        replicas = state.get("replicas")
        if replicas is not None and (replicas.shape != (state.world, row.numel()) or replicas.dtype != source.dtype):
            replicas = None  # on all ranks alike: another world size, or another precision
        message, count = self._message(row, source, replicas, state)
        received = yield Gather(Encoded.ragged([message], row.numel(), [count]))
        if replicas is not None and not any(received.lengths):
            return replicas
        gathered = torch.empty(state.world, row.numel(), dtype=source.dtype, device=row.device)
        for r in range(received.num_rows):
            gathered[r] = self._advanced(received.row(r), replicas, r, row.dtype, state)
        self._learn(replicas, gathered, state)
        state.put("replicas", gathered)
        return gathered

    def _message(self, row: Tensor, source: Tensor, replicas: Tensor | None, state: State) -> tuple[Tensor, ByteCount]:
        if replicas is not None:
            if self._unchanged(source, replicas[state.rank], state):
                return row.new_empty(0, dtype=torch.uint8), ByteCount()
            if (change := self._change(source, self._expected(replicas, state.rank, state), state)) is not None:
                data, count = change
                return _flagged(CHANGE, data), count + ByteCount(metadata=FLAG_BYTES)
        self._sent_whole(source, state)
        data = row.contiguous().view(torch.uint8)
        return _flagged(WHOLE, data), ByteCount(values=data.numel(), metadata=FLAG_BYTES)

    def _advanced(
        self, message: Tensor, replicas: Tensor | None, rank: int, dtype: torch.dtype, state: State
    ) -> Tensor:
        """A rank's row after its message."""
        if message.numel() and message[0] == WHOLE:
            return message[FLAG_BYTES:].clone().view(dtype)  # the clone is aligned
        if replicas is None:
            raise ValueError(
                f"{self.name}: another rank sent a change of parameters that this rank has not seen: load the "
                "compressor's state on all ranks or on none"
            )
        if not message.numel():
            return replicas[rank]
        return self._apply(self._expected(replicas, rank, state), message[FLAG_BYTES:].clone())

    def _expected(self, replicas: Tensor, rank: int, state: State) -> Tensor:
        """What a rank's row is thought to be before its message says how it differs."""
        return replicas[rank]

    def _learn(self, replicas: Tensor | None, gathered: Tensor, state: State) -> None:
        """All rows have moved on from ``replicas`` (None: they are the first ones)."""

    def _source(self, row: Tensor, state: State) -> Tensor:
        """What replicas follow: ``row``, or what it was rounded from."""
        return row

    @abstractmethod
    def _unchanged(self, row: Tensor, replica: Tensor, state: State) -> bool:
        """Is ``row`` bit for bit what this rank last sent?"""

    @abstractmethod
    def _change(self, row: Tensor, expected: Tensor, state: State) -> tuple[Tensor, ByteCount] | None:
        """The bytes that bring ``expected`` to ``row``; None: send the row."""

    @abstractmethod
    def _apply(self, expected: Tensor, data: Tensor) -> Tensor:
        """A new row from what was expected and the bytes of a change."""

    def _sent_whole(self, row: Tensor, state: State) -> None:
        """The row is on its way as it is."""

    def reduce_scatter(self, rows: Tensor, state: State) -> ReduceScatterRounds:
        """Refused: gradients do not change little from step to step."""
        raise ValueError(f"{self.name}: not for reduce-scatter")

    def contribution(self, sent: Any) -> Tensor:
        """Refused, as `reduce_scatter` is."""
        raise ValueError(f"{self.name}: not for reduce-scatter")


class QuantizedDelta(Delta):
    """replica <- expected + q(row - expected): the weight half of SDP4Bit (arXiv 2410.15526), where expected = replica.

    The difference is always taken to what receivers have, so an error is made good in the next step: it is fed
    back by construction, does not accumulate, and stays within q's bound for the changes of one step. With
    absmax blocks of b bits, |replica - row| <= max|change in the block| / (2^b - 2), and the rounding of the
    row's dtype. Bits an element: those of q.

    With ``predict`` p, expected = replica + p (replica - the one before): optimizers with momentum take steps that
    resemble the last one, so that less is left to send (differential pulse code modulation; not in the paper).
    Where Adam's gradients are white noise, beta1 = 0.9 and p = 0.8, the error of q about halves at nearly the same
    bits. It keeps the last change of all rows, a third copy of the unsharded parameters. The bound is then one of
    row - expected.
    """

    no_feedback = "the difference to the replica feeds the error back already"

    def __init__(self, config: DeltaConfig) -> None:
        settings = {"method": config.values} if isinstance(config.values, str) else config.values
        codec = nested("values", {"error_feedback": False, **settings})
        carries = isinstance(codec, Codec) and (codec.for_parameters or codec.for_changes)
        wanted = "a method that encodes row by row and may carry parameters or their changes"
        require(carries, "values", config.values, wanted)
        assert isinstance(codec, Codec)
        steady = not config.predict or codec.for_parameters  # an element that is left out would drift on by itself
        require(steady, "predict", config.predict, "0 with values that leave elements out")
        self.codec, self.predict, self.needs_segments = codec, config.predict, codec.needs_segments

    def _source(self, row: Tensor, state: State) -> Tensor:
        return row if state.master is None else state.master()

    def _unchanged(self, row: Tensor, replica: Tensor, state: State) -> bool:
        last = state.get("last")
        return last is not None and _same_bits(row, last)

    def _expected(self, replicas: Tensor, rank: int, state: State) -> Tensor:
        moved = state.get("moved") if self.predict else None
        replica = replicas[rank].float()
        return replica if moved is None else replica + self.predict * moved[rank].float()

    def _learn(self, replicas: Tensor | None, gathered: Tensor, state: State) -> None:
        if self.predict:
            moved = torch.zeros_like(gathered) if replicas is None else gathered - replicas
            state.put("moved", torch.where(torch.isfinite(moved), moved, 0))

    def _change(self, row: Tensor, expected: Tensor, state: State) -> tuple[Tensor, ByteCount] | None:
        difference = row.float() - expected
        if not bool(torch.isfinite(difference).all()):
            return None
        state.put("last", row.clone())
        encoded = self.codec.encode(difference.unsqueeze(0), state.child("values", state.segments))
        return encoded.row(0), encoded.byte_count(0)

    def _sent_whole(self, row: Tensor, state: State) -> None:
        state.put("last", row.clone())

    def _apply(self, expected: Tensor, data: Tensor) -> Tensor:
        return expected + self.codec.decode(self.codec.received(data, expected.numel()))[0]


class LosslessDelta(Delta):
    """The distance of each element from its old value in ulps, entropy coded given the old exponent.

    One optimizer step moves most bf16 weights by a few ulps or not at all, and how many depends on the weight's
    exponent, which the receiver knows (compare PULSESync, arXiv 2602.03839). Distances become symbols and raw
    bits (`kernels.ulp_reference`); symbols go through rANS with one table for each exponent, rare exponents
    together. Bit for bit, whatever the bits. Bits an element follow from the learning rate: for
    N(0, 0.02) bf16 weights and updates of rms 0.3 lr, 3.7 at lr 6e-4, 1.7 at 1e-4, 0.4 at 1e-5. float32
    rows work too, but their masters move by thousands of ulps: 15 bits and more.

    A change that takes more bytes than the row is sent as the row. rANS runs on the CPU, also for rows on a GPU.
    """

    lossless = unbiased = True

    def __init__(self, config: DeltaConfig) -> None:
        pass

    def _unchanged(self, row: Tensor, replica: Tensor, state: State) -> bool:
        return _same_bits(row, replica)

    def _change(self, row: Tensor, expected: Tensor, state: State) -> tuple[Tensor, ByteCount] | None:
        symbols, raw_bits = kernels.ulp_difference(expected, row)
        coded = kernels.rans_encode(symbols, *_contexts(expected)).to(row.device)
        if SYMBOL_HEAD.size + coded.numel() + raw_bits.numel() >= row.nbytes:
            return None
        head = torch.frombuffer(bytearray(SYMBOL_HEAD.pack(coded.numel())), dtype=torch.uint8).to(row.device)
        count = ByteCount(values=coded.numel() + raw_bits.numel(), metadata=SYMBOL_HEAD.size)
        return torch.cat([head, coded, raw_bits]), count

    def _apply(self, expected: Tensor, data: Tensor) -> Tensor:
        (size,) = SYMBOL_HEAD.unpack(data[: SYMBOL_HEAD.size].cpu().numpy().tobytes())
        end = SYMBOL_HEAD.size + size
        symbols = kernels.rans_decode(data[SYMBOL_HEAD.size : end], expected.numel(), *_contexts(expected))
        return kernels.ulp_apply(expected, symbols.to(expected.device), data[end:])


def _contexts(replica: Tensor) -> tuple[Tensor, int]:
    """Which table each element goes by (uint8 ``[n]``), and how many tables there are.

    Exponents in descending order; neighbours share a table until it has `LEAST` elements.
    """
    exponents = kernels.exponents(replica)
    table, held = 0, 0
    tables = [0] * 256
    for exponent, count in reversed(list(enumerate(torch.bincount(exponents, minlength=256).tolist()))):
        if held >= LEAST and count:
            table, held = table + 1, 0
        tables[exponent] = table
        held += count
    return torch.tensor(tables, dtype=torch.uint8, device=replica.device).index_select(0, exponents.int()), table + 1


def _flagged(flag: int, data: Tensor) -> Tensor:
    return torch.cat([data.new_full((FLAG_BYTES,), flag), data])


def _same_bits(a: Tensor, b: Tensor) -> bool:
    words = torch.int32 if a.itemsize == 4 else torch.int16
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(words), b.view(words))


@register("delta", DeltaConfig)
def delta(config: DeltaConfig) -> Compressor:
    """Changes of parameters, quantised (default) or bit for bit."""
    return LosslessDelta(config) if config.mode == "lossless" else QuantizedDelta(config)
