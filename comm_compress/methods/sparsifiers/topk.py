"""Top-k: the elements of largest magnitude.

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (MEM-SGD), NeurIPS 2018, arXiv 1809.07599.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.state import State
from comm_compress.kernels import Residual
from comm_compress.methods.shared.index_codes import Packed
from comm_compress.methods.shared.sparse_rows import (
    AmountConfig,
    Chosen,
    Indices,
    SparseCodec,
    SparseLayout,
    SparseRows,
    in_float32,
)
from comm_compress.methods.shared.value_codec import reproduces_its_values
from comm_compress.registry import register, require


@dataclass(frozen=True)
class TopKConfig(AmountConfig):
    """Settings of topk, beside those of `AmountConfig`.

    ``selection``: "exact" takes the largest of the whole row, "chunked" those of every ``chunk_size`` elements, of
    which ``ratio`` or ``k`` then says how many.
    ``chunk_size``: elements of a chunk.
    ``values``: the method that carries a row's sent values, as a row of their own; null: float32.
    ``indices``: how positions are coded; "best" is the smallest code of fixed size where values have one too, and
    otherwise the smallest of all. See `SparseRows`. Those that are "packed" are relative to their
    chunk, if there are chunks.
    ``order``: "sparsify_first" encodes the values that were chosen, "quantize_first" applies their method to the whole
    row and takes the largest of what it gives.
    """

    selection: Literal["exact", "chunked"] = "exact"
    chunk_size: int = 4096
    values: str | Mapping[str, Any] | None = None
    indices: Indices = "best"
    order: Literal["sparsify_first", "quantize_first"] = "sparsify_first"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(2 <= self.chunk_size <= 1 << 24, "chunk_size", self.chunk_size, "between 2 and 16777216")
        quantizes_first = self.order == "quantize_first"
        require(not quantizes_first or self.values is not None, "order", self.order, "sparsify_first without values")


@register("topk", TopKConfig, error_feedback=True)
class TopK(SparseCodec):
    """Send the k elements of largest magnitude with their positions.

    ||x - C(x)||^2 <= (1 - k / n) ||x||^2; biased, and useless for training without error feedback,
    which is therefore on by default. k is taken per destination row: row sizes are fixed and positions are
    row-local. Exactly k, of equal magnitudes the first; NaN ranks above everything, so it is sent and seen.

    Bits an element: k / n times those of a value (32, or what ``values`` takes) and of a position, about
    log2(n / k) + 2 (`comm_compress.methods.shared.index_codes`).

    Chunked, k of every chunk: the same bound, as it holds in every chunk; less energy where chunks differ in
    norm, positions of log2(chunk_size) bits, and no dependence between distant parts (SparseLoCo,
    arXiv 2508.15706: 64 of 4096, 12-bit positions, 2-bit values). The last chunk of a row may be short.

    Quantised first, y = Q(x) is cut to its k largest, where Q rounds single elements (natural compression,
    arXiv 1905.10988, bf16); other codecs do not give back their own values from a part of the row and are
    refused. Then many magnitudes are equal and position decides among them.
    """

    def __init__(self, config: TopKConfig) -> None:
        self.config = config
        self.chunk_size = config.chunk_size if config.selection == "chunked" else None
        packed = None if self.chunk_size is None else Packed(self.chunk_size, config.kept(self.chunk_size))
        super().__init__(SparseRows(config.indices, config.values, packed))
        self.quantizes_first = config.order == "quantize_first" and self.rows.codec is not None
        codec = self.rows.codec
        if self.quantizes_first and codec is not None and not reproduces_its_values(codec):
            raise ValueError(
                f"order = 'quantize_first': values = {config.values!r} does not decode a part of its own values to the "
                "same values; use a codec that rounds single elements, or 'sparsify_first'"
            )

    def kept(self, n: int) -> int:
        """How many of ``n`` elements are sent."""
        if self.chunk_size is None:
            return self.config.kept(n)
        chunks, rest = divmod(n, self.chunk_size)
        return chunks * self.config.kept(self.chunk_size) + self.config.kept(rest)

    def layout(self, n: int, dtype: torch.dtype) -> SparseLayout:
        """The layout of a row: k values and k positions."""
        return self.rows.layout(n, self.kept(n))

    def choose(self, rows: Tensor, residual: Residual | None, state: State) -> Chosen:
        """Choose the largest elements of each row, or of each of its chunks."""
        if residual is not None and (self.quantizes_first or self.chunk_size is not None):
            rows, residual = kernels.residual(rows).write_target(rows, residual), None
        if self.quantizes_first and rows.shape[1]:
            rows = self._quantized(rows, state)
        rows, residual = in_float32(rows, residual, state)
        shape = (rows.shape[0], self.kept(rows.shape[1]))
        positions = state.scratch("positions", shape, torch.int32, rows.device)
        values = state.scratch("values", shape, torch.float32, rows.device)
        if self.chunk_size is None:
            kernels.select(rows).largest(rows, positions, values, residual, state.scratch)
        else:
            self._largest_of_chunks(rows, positions, values)
        return Chosen(values, positions)

    def _largest_of_chunks(self, rows: Tensor, positions: Tensor, values: Tensor) -> None:
        assert self.chunk_size is not None
        chunks, rest = divmod(rows.shape[1], self.chunk_size)
        each = self.config.kept(self.chunk_size)
        whole, sent = chunks * self.chunk_size, chunks * each
        starts = torch.arange(0, whole, self.chunk_size, device=rows.device, dtype=torch.int32).unsqueeze(1)
        for row, of_row, value in zip(rows.contiguous(), positions, values, strict=True):
            inside = of_row[:sent].view(chunks, each)
            select = kernels.select(row)
            select.largest(row[:whole].view(chunks, self.chunk_size), inside, value[:sent].view(chunks, each))
            inside += starts
            if rest:
                select.largest(row[None, whole:], of_row[None, sent:], value[None, sent:])
                of_row[sent:] += whole

    def _quantized(self, rows: Tensor, state: State) -> Tensor:
        """The whole rows, as the values' codec decodes them."""
        codec = self.rows.codec
        assert codec is not None
        return codec.encode_and_decode(rows.float(), state.child("whole"))[1]
