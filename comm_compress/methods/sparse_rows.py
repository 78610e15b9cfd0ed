"""Rows of which only some coordinates are sent: values and positions as bytes, shared by all sparsifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from comm_compress.compressor import Codec
from comm_compress.encoded import ByteCount, Encoded, Field, Layout
from comm_compress.index_codes import CODES, IndexCode, Packed, smallest
from comm_compress.methods.nested_values import value_codec
from comm_compress.registry import require
from comm_compress.state import State

Indices = Literal["int32", "packed", "elias_fano", "rice", "bitmap", "best"]
HEADER_BYTES = 8  # of a row of variable size: two int32, how many values, and how many bytes they take


@dataclass(frozen=True)
class AmountConfig:
    """How much is sent: ``k`` elements of every destination row, or ``ratio`` of them (at least one)."""

    ratio: float = 0.01
    k: int | None = None

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "ratio", self.ratio, "above 0 and at most 1")
        require(self.k is None or self.k > 0, "k", self.k, "positive")

    def kept(self, n: int) -> int:
        """How many of ``n`` elements are sent."""
        return min(n, self.k if self.k is not None else max(1, round(self.ratio * n)))


class SparseLayout(Layout):
    """k values and k positions. Values come first: those of ``inner`` field by field, or float32."""

    def __init__(self, n: int, k: int, code: IndexCode, inner: Layout | None) -> None:
        values = (
            [Field("values", torch.float32, k, "values")]
            if inner is None
            else [Field(f"values/{f.name}", f.dtype, f.size, f.kind) for f in inner.fields.values()]
        )
        super().__init__(*values, Field("indices", torch.uint8, code.size(n, k), "indices"))
        self.k, self.code, self.inner = k, code, inner


class SparseRows:
    """Turns kept values and their ascending positions into rows of bytes and back.

    ``values``: null sends float32; otherwise the codec (a name, or ``{"method": ...}``) that encodes the kept
    values of a row as a row of its own. ``indices``: how positions are coded (`comm_compress.index_codes`);
    "best" takes the smallest code of fixed size where values have one too (Elias-Fano at usual densities),
    and otherwise the smallest of all (Rice). Rice on fixed-size values saves another half bit an index and
    costs an exchange of lengths before the rows, so it is used there only when asked for.

    ``packed``: the code behind "packed", when positions have chunks.

    A row of fixed size holds nothing but values and positions. A row of variable size tells its k and the bytes of
    its values in front; one that keeps nothing is empty.
    """

    def __init__(
        self,
        indices: Indices = "best",
        values: str | Mapping[str, Any] | None = None,
        packed: Packed | None = None,
    ) -> None:
        self.codec = value_codec(values)
        self.indices = indices
        self.packed = packed or Packed()
        fixed_values = self.codec is None or self.codec.fixed_size
        self.fixed_size = fixed_values and (indices == "best" or CODES[indices].fixed_size)

    def code(self, n: int, k: int, fixed_size: bool) -> IndexCode:
        """How the positions of k of n are written."""
        if self.indices == "best":
            return smallest(n, k, fixed_size, self.packed)
        return self.packed if self.indices == "packed" else CODES[self.indices]

    def layout(self, n: int, k: int) -> SparseLayout:
        """One row of fixed size."""
        inner = None if self.codec is None else self.codec.layout(k, torch.float32)
        return SparseLayout(n, k, self.code(n, k, True), inner)

    def encode(self, values: Tensor, indices: Tensor, n: int, state: State) -> Encoded:
        """``values`` float32 and ``indices`` int32 ``[R, k]``, ascending in each row, of rows of n elements."""
        if not self.fixed_size:
            return self.encode_ragged(list(values), list(indices), n, state)
        layout = self.layout(n, values.shape[1])
        out = Encoded.empty(values.shape[0], n, layout, values.device)
        out["indices"].copy_(layout.code.encode(indices, n))
        if self.codec is None:
            out["values"].copy_(values)
            return out
        coded = self.codec.encode(values, state.child("values"))
        assert coded.layout is not None
        for name in coded.layout.fields:
            out[f"values/{name}"].copy_(coded[name])
        return out

    def encode_ragged(self, values: Sequence[Tensor], indices: Sequence[Tensor], n: int, state: State) -> Encoded:
        """Row r keeps ``values[r]`` float32 ``[k_r]`` at ``indices[r]`` int32 ``[k_r]``."""
        rows, counts = [], []
        for number, (kept, places) in enumerate(zip(values, indices, strict=True)):
            row, count = self._encode_row(kept, places, n, state, number)
            rows.append(row)
            counts.append(count)
        return Encoded.ragged(rows, n, counts)

    def _encode_row(
        self, values: Tensor, indices: Tensor, n: int, state: State, number: int
    ) -> tuple[Tensor, ByteCount]:
        k = values.numel()
        # rows are encoded one by one: each needs random numbers of its own
        inner = None if self.codec is None else state.child(f"values{number}")
        if k == 0:
            return torch.empty(0, dtype=torch.uint8, device=values.device), ByteCount()
        places = self.code(n, k, False).encode(indices.unsqueeze(0), n)[0]
        if self.codec is None or inner is None:
            row, count = values.float().view(torch.uint8), ByteCount(values=4 * k)
        else:
            coded = self.codec.encode(values.unsqueeze(0), inner)
            row, count = coded.row(0), coded.byte_count(0)
        header = torch.tensor([k, row.numel()], dtype=torch.int32, device=values.device).view(torch.uint8)
        return torch.cat([header, row, places]), count + ByteCount(0, places.numel(), HEADER_BYTES)

    def rows(self, encoded: Encoded) -> Iterator[tuple[Tensor, Tensor]]:
        """Each row's decoded values, float32 ``[k]``, and positions, int32 ``[k]``."""
        layout = encoded.layout
        if layout is None:
            for number in range(encoded.num_rows):
                yield self._decode_row(encoded.row(number), encoded.n)
            return
        assert isinstance(layout, SparseLayout)
        indices = layout.code.decode(encoded["indices"], encoded.n, layout.k)
        if layout.inner is None:
            values = encoded["values"]
        else:
            assert self.codec is not None
            coded = Encoded.empty(encoded.num_rows, layout.k, layout.inner, encoded.buffer.device)
            for name in layout.inner.fields:
                coded[name].copy_(encoded[f"values/{name}"])
            values = self.codec.decode(coded).float()
        yield from zip(values, indices, strict=True)

    def _decode_row(self, row: Tensor, n: int) -> tuple[Tensor, Tensor]:
        if row.numel() == 0:
            return row.new_empty(0, dtype=torch.float32), row.new_empty(0, dtype=torch.int32)
        k, size = row[:HEADER_BYTES].clone().view(torch.int32).tolist()
        places = row[HEADER_BYTES + size :].unsqueeze(0)
        indices = self.code(n, k, False).decode(places, n, k)[0]
        coded = row[HEADER_BYTES : HEADER_BYTES + size].clone()
        if self.codec is None:
            return coded.view(torch.float32), indices
        return self.codec.decode(self.codec.received(coded, k))[0].float(), indices

    def decode(self, encoded: Encoded) -> Tensor:
        """Dense float32 rows ``[R, n]``, zero where nothing was sent."""
        dense = torch.zeros(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        for row, (values, indices) in zip(dense, self.rows(encoded), strict=True):
            row.index_copy_(0, indices.long(), values)
        return dense

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Scatter-add row after row to ``out`` ``[n]``, so that the order of sums is the order of ranks."""
        out.zero_()
        for values, indices in self.rows(encoded):
            out.index_add_(0, indices, values)
        return out

    def subtract(self, target: Tensor, sent: Encoded) -> Tensor:
        """``target - decode(sent)`` in ``target``'s memory, touching only what was sent.

        Exact values are those of ``target``: their places become zero.
        """
        for row, (values, indices) in zip(target, self.rows(sent), strict=True):
            if self.codec is None:
                row.index_fill_(0, indices.long(), 0)
            else:
                row.index_add_(0, indices, values, alpha=-1)
        return target


class SparseCodec(Codec):
    """A codec whose rows are `SparseRows`: a method derived from it only chooses what to send."""

    def __init__(self, rows: SparseRows) -> None:
        self.rows = rows
        self.fixed_size = rows.fixed_size

    def decode(self, encoded: Encoded) -> Tensor:
        """Dense rows, zero where nothing was sent."""
        return self.rows.decode(encoded)

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """The sum without holding dense rows."""
        return self.rows.sum_into(encoded, out)

    def subtract_contribution(self, target: Tensor, sent: Encoded) -> Tensor:
        """Only what was sent is touched."""
        return self.rows.subtract(target, sent)
