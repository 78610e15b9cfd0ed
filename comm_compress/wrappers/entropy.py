"""Entropy coding of any codec's bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
import zstandard
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.encoded import ByteCount, Encoded, Field, Layout, RaggedRow, size_of
from comm_compress.core.state import State
from comm_compress.core.traits import combine
from comm_compress.kernels.elements.residual.tensors import Residual
from comm_compress.kernels.tools.scratch import Scratch, apart, fresh

Coder = Literal["zstd", "rans"]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LEVEL = 1  # of zstd: codes of noise have no repetitions for higher levels to find
WORTH_CODING = 64  # bytes: shorter streams gain nothing on their tables
RAW, CODED = 0, 1
STREAM_HEAD = struct.Struct("<BI")  # how a stream is stored, and its bytes


def shortened(data: Tensor, coder: Coder, scratch: Scratch = fresh) -> list[Tensor]:
    """Return bytes uint8 ``[k]`` in parts: how they are stored and how many they take; then the bytes, or less.

    Parts may lie in memory of ``scratch``.
    """
    stored, how = [data], RAW
    if data.numel() >= WORTH_CODING and (coded := _coded(data, coder, scratch)) is not None:
        stored, how = [coded], CODED
    return [tensor_of(STREAM_HEAD.pack(how, size_of(stored)), data.device), *stored]


def restored(message: Tensor, offset: int, out: Tensor, coder: Coder, scratch: Scratch = fresh) -> int:
    """Write what `shortened` was given to ``out``, from ``offset`` in a message; return where that ends."""
    begin = offset + STREAM_HEAD.size
    more = kernels.rans.front_bytes(message.device, out.numel()) if message.is_cuda and coder == "rans" else 0
    front = message[offset : begin + more].cpu()  # a GPU is waited for once, for the head and the stream's own head
    how, length = STREAM_HEAD.unpack(bytes_of(front[: STREAM_HEAD.size]))
    end: int = begin + length
    if how == RAW:
        out.copy_(message[begin:end])
    else:
        _decode(message[begin:end], out, coder, scratch, front[STREAM_HEAD.size :][:length] if more else None)
    return end


def _coded(data: Tensor, coder: Coder, scratch: Scratch) -> Tensor | None:
    """The coded bytes, if they are fewer."""
    if coder == "rans":
        memory = scratch("stream", (data.numel(),), torch.uint8, data.device)
        size = kernels.rans.encode_into(data, memory, scratch)
        return memory[:size] if size else None
    coded = zstandard.ZstdCompressor(level=LEVEL).compress(bytes_of(data))
    return tensor_of(coded, data.device) if len(coded) < data.numel() else None


def _decode(stored: Tensor, out: Tensor, coder: Coder, scratch: Scratch, front: Tensor | None) -> None:
    if coder == "zstd":
        octets = zstandard.ZstdDecompressor().decompress(bytes_of(stored), max_output_size=out.numel())
        out.copy_(tensor_of(octets, out.device))
    elif out.is_contiguous():
        kernels.rans.decode_into(stored, out, scratch, front)
    else:
        symbols = scratch("symbols", tuple(out.shape), torch.uint8, out.device)
        kernels.rans.decode_into(stored, symbols, scratch, front)
        out.copy_(symbols)


def tensor_of(data: bytes, device: torch.device) -> Tensor:
    """Return these bytes as a tensor with memory of its own, uint8 ``[k]``."""
    # a copy from such memory to a GPU is taken off it before the call returns: nothing has to be waited for
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device, non_blocking=True)


def bytes_of(data: Tensor) -> bytes:
    """Return the bytes of a tensor, from whatever device."""
    return data.cpu().numpy().tobytes()


class _Stream(NamedTuple):
    """One byte of every item of a field: byte number ``byte`` of each."""

    field: Field
    byte: int

    def of(self, encoded: Encoded, row: int) -> Tensor:
        """Return the stream's bytes in one row: a strided uint8 view ``[size]``."""
        assert encoded.layout is not None
        start = encoded.layout.offsets[self.field.name]
        items = encoded.buffer[row, start : start + self.field.size * self.field.dtype.itemsize]
        return items.view(-1, self.field.dtype.itemsize)[:, self.byte]


class EntropyCoded(Codec):
    """Shortens a codec's rows without loss: frequent bytes take fewer bits than rare ones.

    The bytes of each field form a stream each (fields of wider items, one stream for every byte of an
    item: exponents repeat, mantissas do not), coded on its own and stored as it is where that is not shorter.
    Codes narrower than a byte are taken as they are packed: their bytes are joint symbols of neighbours.

    - "rans": static order-0 rANS (arXiv 1311.2540; `kernels.rans`), within 1 % of the
      bytes' order-0 entropy plus its tables of up to 0.5 KB a stream;
    - "zstd": zstandard at level 1, Huffman coding after a search for repetitions.

    A row is a byte for the input's dtype, and the streams, each after five bytes (how it is stored, its
    length); lengths depend on the data. Whatever the codec gives comes back bit for bit, so its bias, its
    error and its feedback are its own. zstd runs on the CPU: rows on a GPU are copied there and back.
    """

    fixed_size = False

    def __init__(self, inner: Codec, coder: Coder) -> None:
        self.inner, self.coder = inner, coder
        self.name, self.traits = inner.name, combine(inner.traits)
        self.settings = {**inner.settings, "entropy": coder}

    @staticmethod
    def refusal(method: Compressor) -> str:
        """Say why ``method`` cannot be entropy coded; empty when it can."""
        if not isinstance(method, Codec):
            return "this method's rows are summed on the wire, or take several rounds"
        if not method.fixed_size:
            return "this method's rows vary in size: they are coded already"
        own = type(method).exchange is not Codec.exchange or type(method).all_gather is not Codec.all_gather
        return "this method takes rounds of its own" if own else ""

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Encode by the inner codec and shorten its rows; they differ in length."""
        return self._compress(self.inner.encode(rows, state), rows.dtype, state)

    def encode_and_decode(self, rows: Tensor, state: State) -> tuple[Encoded, Tensor]:
        """Encode, and decode the inner codec's rows, of which nothing is lost."""
        inner, decoded = self.inner.encode_and_decode(rows, state)
        return self._compress(inner, rows.dtype, state), decoded

    def decode(self, encoded: Encoded) -> Tensor:
        """Restore the inner codec's rows and decode them."""
        return self.inner.decode(self.expand(encoded))

    def decode_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Restore the inner codec's rows and decode them to ``out``."""
        return self.inner.decode_into(self.expand(encoded), out)

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Restore the inner codec's rows and sum them."""
        return self.inner.sum_into(self.expand(encoded), out)

    def encode_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> Encoded:
        """Encode with feedback by the inner codec, and shorten its rows."""
        return self._compress(self.inner.encode_with_feedback(rows, residual, state), torch.float32, state)

    def _compress(self, plain: Encoded, dtype: torch.dtype, state: State) -> Encoded:
        """Shorten the rows of ``plain``; ``dtype`` is that of the rows that were encoded."""
        assert plain.layout is not None
        assert not plain.agreed, "a row must not need more than itself"
        coded = [self._compress_row(plain, row, dtype, state) for row in range(plain.num_rows)]
        return Encoded.ragged(coded, plain.n, state.scratch)

    def _compress_row(self, plain: Encoded, row: int, dtype: torch.dtype, state: State) -> RaggedRow:
        assert plain.layout is not None
        parts = [tensor_of(bytes([DTYPES.index(dtype)]), plain.buffer.device)]
        by_kind = {"values": 0, "indices": 0, "metadata": 1}
        for stream in _streams(plain.layout):
            scratch = apart(state.scratch, f"{stream.field.name} {stream.byte} {row}")
            head, *stored = shortened(stream.of(plain, row).contiguous(), self.coder, scratch)
            parts += [head, *stored]
            by_kind[stream.field.kind] += size_of(stored)
            by_kind["metadata"] += head.numel()
        return RaggedRow(parts, ByteCount(**by_kind))

    def expand(self, coded: Encoded) -> Encoded:
        """Restore the inner codec's own rows, bit for bit."""
        assert coded.lengths is not None
        layout = self.inner.layout(coded.n, DTYPES[int(coded.row(0)[0])])
        memory = coded.scratch("expanded", (coded.num_rows, layout.row_bytes), torch.uint8, coded.buffer.device)
        plain = Encoded.within(memory, layout, coded.n)
        for row in range(coded.num_rows):
            self._expand_row(coded.row(row), plain, row, coded.scratch)
        return plain

    def _expand_row(self, data: Tensor, plain: Encoded, row: int, scratch: Scratch) -> None:
        assert plain.layout is not None
        offset = 1  # behind the dtype's byte
        for stream in _streams(plain.layout):
            offset = restored(data, offset, stream.of(plain, row), self.coder, scratch)


def _streams(layout: Layout) -> Iterator[_Stream]:
    for field in layout.fields.values():
        if field.size:
            yield from (_Stream(field, byte) for byte in range(field.dtype.itemsize))
