"""The largest cosines of every chunk: what DeMo sends of momentum.

Peng, Chen, Su, Quesnelle, Kingma and Liu, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded, Field, Layout
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.methods.shared.cosines import Chunks, chunks_of
from comm_compress.methods.shared.index_codes import CODES, IndexCode, smallest
from comm_compress.methods.shared.value_codec import value_codec
from comm_compress.registry import register, require


@dataclass(frozen=True)
class DCTConfig:
    """Settings of dct.

    ``k``: coefficients of every chunk that are sent; all of a chunk that has fewer.
    ``chunk_size``: how long the sides of a chunk may be; they divide the parameter's own.
    ``values``: the method that carries a row's sent coefficients, as a row of their own; null: float32.
    ``indices``: how positions within a chunk are coded; "best" is the smallest code of fixed size.
    """

    k: int = 32
    chunk_size: int = 64
    values: str | Mapping[str, Any] | None = None
    indices: Literal["int32", "packed", "elias_fano", "bitmap", "best"] = "best"

    def __post_init__(self) -> None:
        require(self.k > 0, "k", self.k, "positive")
        require(1 <= self.chunk_size <= 1024, "chunk_size", self.chunk_size, "between 1 and 1024")


class _Sent:
    """What is sent of one parameter: the ``k`` largest of each chunk's coefficients, their positions by ``code``."""

    def __init__(self, chunks: Chunks, config: DCTConfig, first: int) -> None:
        self.chunks, self.k = chunks, min(config.k, chunks.size)
        self.code: IndexCode = (
            smallest(chunks.size, self.k, True) if config.indices == "best" else CODES[config.indices]
        )
        self.values = slice(first, first + self.k * chunks.number)
        """Which of the row's sent values are this parameter's."""

    @property
    def position_bytes(self) -> int:
        """The bytes of all positions; none where every coefficient is sent."""
        return 0 if self.k == self.chunks.size else self.chunks.number * self.code.size(self.chunks.size, self.k)

    def coded(self, places: Tensor) -> Tensor:
        """Code positions int32 ``[R * number, k]`` of R rows: ``[R, position_bytes]``."""
        return self.code.encode(places, self.chunks.size).reshape(-1, self.position_bytes)

    def places(self, coded: Tensor) -> Tensor:
        """Return where the sent ones lie in ``[R, number * size]``, from coded positions, int64 ``[R, number * k]``."""
        size, number = self.chunks.size, self.chunks.number
        starts = torch.arange(number, device=coded.device).mul_(size).unsqueeze(1)
        if self.k == size:
            within = torch.arange(size, device=coded.device).expand(coded.shape[0], number, size)
        else:
            by_chunk = coded.reshape(coded.shape[0] * number, -1)
            within = self.code.decode(by_chunk, size, self.k).view(-1, number, self.k).long()
        return (within + starts).view(-1, number * self.k)


class _DCTLayout(Layout):
    """Coefficients of all parameters, then positions, parameter after parameter."""

    def __init__(self, parameters: Sequence[Chunks], config: DCTConfig, codec: Codec | None) -> None:
        self.sent: list[_Sent] = []
        self.k = 0
        for chunks in parameters:
            self.sent.append(_Sent(chunks, config, self.k))
            self.k = self.sent[-1].values.stop
        self.inner = None if codec is None else codec.layout(self.k, torch.float32)
        values = (
            [Field("values", torch.float32, self.k, "values")]
            if self.inner is None
            else [Field(f"values/{f.name}", f.dtype, f.size, f.kind) for f in self.inner.fields.values()]
        )
        super().__init__(*values, Field("positions", torch.uint8, sum(s.position_bytes for s in self.sent), "indices"))


@register("dct", DCTConfig, error_feedback=True)
class DCT(Codec):
    """Send the largest coefficients of the discrete cosine transform of every chunk (arXiv 2411.19870).

        c = D_h x D_w^T              chunk by chunk, D the orthonormal DCT-II
        send the k largest |c|, and where they lie in the chunk
        x^ = D_h^T c^ D_w            of the coefficients that were sent

    The transform is orthonormal, so ||x - x^||^2 <= (1 - k / size) ||x||^2 in every chunk, as for top-k, and less where
    neighbours move alike. Biased; error feedback is on by default. DeMo keeps its momentum as that feedback, with a
    ``decay`` of 0.999 (`comm_compress.optim.DeMo`); here it is a method for gradients like any other.

    A chunk is at most ``chunk_size`` x ``chunk_size`` elements of a matrix, or ``chunk_size`` of a vector. The paper
    leaves open what becomes of sizes that 64 does not divide; as in its public code a side is the largest divisor of
    the parameter's side that is no longer, so a prime number of columns has chunks of one column. Of a parameter that
    ranks share by rows it is those of a rank's rows. Where parameters are unknown the row is one vector.

    What is summed is coefficients, in the order of ranks, with one inverse transform of the sum. Products of matrices
    round as the device's do: ranks of one kind decode the same bits.

    Bits an element: k / size times those of a value (32, or what ``values`` takes) and of a position, at most
    log2(size / k) + 2: 0.32 for 32 of 64 x 64.
    """

    fixed_size = False
    traits = Traits(needs_segments=True)

    def __init__(self, config: DCTConfig) -> None:
        self.config, self.codec = config, value_codec(config.values)
        if self.codec is not None and not self.codec.fixed_size:
            raise ValueError(f"values = {config.values!r}: must send rows of a fixed size")
        self._layouts: dict[tuple[Chunks, ...], _DCTLayout] = {}

    def _layout_of(self, n: int, state: State) -> _DCTLayout:
        parameters = chunks_of(n, state.segments, self.config.chunk_size)
        if parameters not in self._layouts:
            self._layouts[parameters] = _DCTLayout(parameters, self.config, self.codec)
        return self._layouts[parameters]

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Transform each row chunk by chunk, and keep the largest coefficients."""
        rows, layout = rows.float(), self._layout_of(rows.shape[1], state)
        out = state.message(rows, layout)
        values = state.scratch("coefficients", (rows.shape[0], layout.k), torch.float32, rows.device)
        byte = 0
        for sent in layout.sent:
            flat = sent.chunks.coefficients(rows).view(-1, sent.chunks.size)
            if sent.k == sent.chunks.size:
                values[:, sent.values] = flat.view(rows.shape[0], -1)
                continue
            places = torch.empty(flat.shape[0], sent.k, dtype=torch.int32, device=rows.device)
            largest = torch.empty(flat.shape[0], sent.k, device=rows.device)
            kernels.select(flat).largest(flat, places, largest)
            values[:, sent.values] = largest.view(rows.shape[0], -1)
            out["positions"][:, byte : byte + sent.position_bytes] = sent.coded(places)
            byte += sent.position_bytes
        if self.codec is None:
            out["values"].copy_(values)
            return out
        coded = self.codec.encode(values, state.child("values"))
        for name in coded.layout.fields if coded.layout is not None else ():
            out[f"values/{name}"].copy_(coded[name])
        return out

    def decode(self, encoded: Encoded) -> Tensor:
        """Return the rows that the sent coefficients stand for."""
        out = torch.zeros(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        for sent, values, places in self._arrived(encoded):
            whole = values.new_zeros(encoded.num_rows, sent.chunks.a * sent.chunks.b).scatter_(1, places, values)
            out[:, sent.chunks.start : sent.chunks.stop] = sent.chunks.elements(_by_chunk(whole, sent))
        return out

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Add up the rows' coefficients, row after row, and transform the sum back to ``out`` ``[n]``."""
        for sent, values, places in self._arrived(encoded):
            total, _ = _added(sent, values, places)
            out[sent.chunks.start : sent.chunks.stop] = sent.chunks.elements(_by_chunk(total.unsqueeze(0), sent))[0]
        return out

    def mean_over_senders(self, encoded: Encoded) -> Tensor:
        """Transform back, float32 ``[n]``, each coefficient's mean over those of the rows that hold it.

        So DeMo's public code averages: a coefficient that one of many ranks sent counts in full.
        """
        out = torch.empty(encoded.n, device=encoded.buffer.device)
        for sent, values, places in self._arrived(encoded):
            total, senders = _added(sent, values, places)
            mean = total / senders.clamp_(min=1)
            out[sent.chunks.start : sent.chunks.stop] = sent.chunks.elements(_by_chunk(mean.unsqueeze(0), sent))[0]
        return out

    def _arrived(self, encoded: Encoded) -> Iterator[tuple[_Sent, Tensor, Tensor]]:
        """Yield, parameter by parameter, the sent coefficients ``[R, number * k]`` and where they lie."""
        layout = encoded.layout
        assert isinstance(layout, _DCTLayout)
        values, byte = self._values(encoded, layout), 0
        for sent in layout.sent:
            coded = encoded["positions"][:, byte : byte + sent.position_bytes]
            byte += sent.position_bytes
            yield sent, values[:, sent.values], sent.places(coded)

    def _values(self, encoded: Encoded, layout: _DCTLayout) -> Tensor:
        if self.codec is None or layout.inner is None:
            return encoded["values"]
        coded = Encoded.empty(encoded.num_rows, layout.k, layout.inner, encoded.buffer.device)
        for name in layout.inner.fields:
            coded[name].copy_(encoded[f"values/{name}"])
        return self.codec.decode(coded).float()


def _added(sent: _Sent, values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Add up rows of coefficients in their order; return also how many rows hold each: float32 ``[a * b]`` both."""
    total = values.new_zeros(sent.chunks.a * sent.chunks.b)
    senders = torch.zeros_like(total)
    for of_row, where in zip(values, places, strict=True):
        total.index_add_(0, where, of_row)
        senders.index_add_(0, where, torch.ones_like(of_row))
    return total, senders


def _by_chunk(coefficients: Tensor, sent: _Sent) -> Tensor:
    return coefficients.view(-1, sent.chunks.number, sent.chunks.size)
