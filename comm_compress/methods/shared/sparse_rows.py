"""Rows of which only some coordinates are sent: values and positions as bytes, shared by all sparsifiers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from comm_compress import kernels
from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import ByteCount, Encoded, Field, Layout, RaggedRow
from comm_compress.core.state import State
from comm_compress.core.traits import Traits
from comm_compress.kernels import Residual
from comm_compress.methods.shared.index_codes import CODES, IndexCode, Packed, smallest
from comm_compress.methods.shared.value_codec import value_codec
from comm_compress.registry import require

Indices = Literal["int32", "packed", "elias_fano", "rice", "bitmap", "best"]
HEADER_BYTES = 8  # of a row of variable size: two int32, how many values, and how many bytes they take


@dataclass(frozen=True)
class AmountConfig:
    """How much is sent.

    ``ratio``: that share of every destination row, at least one element.
    ``k``: so many elements of every destination row; null: as ``ratio`` says.
    """

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
    values of a row as a row of its own. ``indices``: how positions are coded (`index_codes`); "best" takes the smallest
    code of fixed size where values have one too (Elias-Fano at usual densities), and otherwise the smallest of all
    (Rice). Rice on fixed-size values saves another half bit an index and costs an exchange of lengths before the rows,
    so it is used there only when asked for.

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
        self._layouts: dict[tuple[int, int], SparseLayout] = {}  # of every unit, the same at every step

    def code(self, n: int, k: int, fixed_size: bool) -> IndexCode:
        """How the positions of k of n are written."""
        if self.indices == "best":
            return smallest(n, k, fixed_size, self.packed)
        return self.packed if self.indices == "packed" else CODES[self.indices]

    def layout(self, n: int, k: int) -> SparseLayout:
        """The layout of a row of fixed size."""
        if (n, k) not in self._layouts:
            self._layouts[n, k] = self._new_layout(n, k)
        return self._layouts[n, k]

    def _new_layout(self, n: int, k: int) -> SparseLayout:
        inner = None if self.codec is None else self.codec.layout(k, torch.float32)
        return SparseLayout(n, k, self.code(n, k, True), inner)

    def encode(self, values: Tensor, indices: Tensor, n: int, state: State) -> Encoded:
        """Encode ``values`` float32 and ``indices`` int32 ``[R, k]``, ascending in each row, of rows of n elements."""
        if not self.fixed_size:
            return self.encode_ragged(list(values), list(indices), n, state)
        num_rows, k = values.shape
        layout = self.layout(n, k)
        memory = state.scratch("sparse rows", (num_rows, layout.row_bytes), torch.uint8, values.device)
        out = Encoded.within(memory, layout, n)
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
        made = [
            self._encode_row(kept, positions, n, state, number)
            for number, (kept, positions) in enumerate(zip(values, indices, strict=True))
        ]
        return Encoded.ragged(made, n, state.scratch)

    def _encode_row(self, values: Tensor, indices: Tensor, n: int, state: State, number: int) -> RaggedRow:
        k = values.numel()
        # rows are encoded one by one: each needs random numbers of its own
        inner = None if self.codec is None else state.child(f"values{number}")
        if k == 0:
            return RaggedRow([torch.empty(0, dtype=torch.uint8, device=values.device)], ByteCount())
        coded_indices = self.code(n, k, False).encode(indices.unsqueeze(0), n)[0]
        if self.codec is None or inner is None:
            row, count = values.float().view(torch.uint8), ByteCount(values=4 * k)
        else:
            coded = self.codec.encode(values.unsqueeze(0), inner)
            row, count = coded.row(0), coded.byte_count(0)
        header = torch.tensor([k, row.numel()], dtype=torch.int32, device=values.device).view(torch.uint8)
        return RaggedRow([header, row, coded_indices], count + ByteCount(0, coded_indices.numel(), HEADER_BYTES))

    def rows(self, encoded: Encoded) -> Iterator[tuple[Tensor, Tensor]]:
        """Each row's decoded values, float32 ``[k]``, and positions, int32 ``[k]``."""
        layout = encoded.layout
        if layout is None:
            for number in range(encoded.num_rows):
                yield self._decode_row(encoded.row(number), encoded.n)
            return
        assert isinstance(layout, SparseLayout)
        indices = layout.code.decode(encoded["indices"], encoded.n, layout.k)
        yield from zip(self._values(encoded), indices, strict=True)

    def _values(self, encoded: Encoded) -> Tensor:
        """The decoded values of rows of fixed size, float32 ``[R, k]``."""
        layout = encoded.layout
        assert isinstance(layout, SparseLayout)
        if layout.inner is None:
            return encoded["values"]
        assert self.codec is not None
        coded = Encoded.empty(encoded.num_rows, layout.k, layout.inner, encoded.buffer.device)
        for name in layout.inner.fields:
            coded[name].copy_(encoded[f"values/{name}"])
        return self.codec.decode(coded).float()

    def _decode_row(self, row: Tensor, n: int) -> tuple[Tensor, Tensor]:
        if row.numel() == 0:
            return row.new_empty(0, dtype=torch.float32), row.new_empty(0, dtype=torch.int32)
        k, size = row[:HEADER_BYTES].clone().view(torch.int32).tolist()
        coded_indices = row[HEADER_BYTES + size :].unsqueeze(0)
        indices = self.code(n, k, False).decode(coded_indices, n, k)[0]
        coded = row[HEADER_BYTES : HEADER_BYTES + size].clone()
        if self.codec is None:
            return coded.view(torch.float32), indices
        return self.codec.decode(self.codec.received(coded, k))[0].float(), indices

    def decode(self, encoded: Encoded) -> Tensor:
        """Dense float32 rows ``[R, n]``, zero where nothing was sent."""
        return self.decode_into(encoded, torch.empty(encoded.num_rows, encoded.n, device=encoded.buffer.device))

    def decode_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Write dense rows to ``out`` ``[R, n]``, of any float dtype."""
        for row, (values, indices) in zip(out.zero_(), self.rows(encoded), strict=True):
            row.index_copy_(0, indices.long(), values.to(out.dtype))
        return out

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Scatter-add row after row to ``out`` ``[n]``, so that the order of sums is the order of ranks."""
        out.zero_()
        for values, indices in self.rows(encoded):
            out.index_add_(0, indices, values)
        return out

    def subtract(self, target: Tensor, sent: Encoded, indices: Iterable[Tensor] | None = None) -> Tensor:
        """Compute ``target - decode(sent)`` in ``target``'s memory, touching only what was sent.

        Exact values are those of ``target``: their places become zero. ``indices``: the positions that were sent,
        where they are still known.
        """
        if self.codec is None and indices is not None:
            for row, positions in zip(target, indices, strict=True):
                row.index_fill_(0, positions.long(), 0)
            return target
        for row, (values, positions) in zip(target, self.rows(sent), strict=True):
            if self.codec is None:
                row.index_fill_(0, positions.long(), 0)
            else:
                row.index_add_(0, positions, values, alpha=-1)
        return target


class Chosen(NamedTuple):
    """What is sent: row r's values, float32 ``[k_r]``, and their ascending positions, int32 ``[k_r]``."""

    values: Tensor | list[Tensor]
    indices: Tensor | list[Tensor]


def in_float32(rows: Tensor, residual: Residual | None, state: State) -> tuple[Tensor, Residual | None]:
    """Rows to choose from that are float32, and the residual, or None once its target is written."""
    if rows.dtype == torch.float32:
        return rows, residual
    if residual is not None:
        return kernels.residual(rows).write_target(rows, residual), None
    return state.scratch("float32 rows", tuple(rows.shape), torch.float32, rows.device).copy_(rows), None


class SparseCodec(Codec):
    """A codec whose rows are `SparseRows`: a method derived from it only chooses what to send."""

    traits = Traits(sparse=True, for_activations=True)

    def __init__(self, rows: SparseRows) -> None:
        self.rows = rows
        self.fixed_size = rows.fixed_size

    @abstractmethod
    def choose(self, rows: Tensor, residual: Residual | None, state: State) -> Chosen:
        """What to send of ``rows`` ``[R, n]``, any float dtype; with the residual, of its target, which is written."""

    def encode(self, rows: Tensor, state: State) -> Encoded:
        """Choose what to send, and code it."""
        return self.coded(self.choose(rows, None, state), rows.shape[1], state)

    def encode_with_feedback(self, rows: Tensor, residual: Residual, state: State) -> Encoded:
        """Choose from the residual's target, and subtract from it what was sent."""
        chosen = self.choose(rows, residual, state)
        sent = self.coded(chosen, rows.shape[1], state)
        self.rows.subtract(residual.new, sent, chosen.indices)
        return sent

    def coded(self, chosen: Chosen, n: int, state: State) -> Encoded:
        """What was chosen from rows of n elements, as rows of bytes."""
        values, indices = chosen
        if isinstance(values, Tensor) and isinstance(indices, Tensor):
            return self.rows.encode(values, indices, n, state)
        return self.rows.encode_ragged(list(values), list(indices), n, state)

    def decode(self, encoded: Encoded) -> Tensor:
        """Dense rows, which are zero where nothing was sent."""
        return self.rows.decode(encoded)

    def decode_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Write dense rows to ``out``, without others in between."""
        return self.rows.decode_into(encoded, out)

    def sum_into(self, encoded: Encoded, out: Tensor) -> Tensor:
        """Write the sum to ``out``, without holding dense rows."""
        return self.rows.sum_into(encoded, out)

    def subtract_contribution(self, target: Tensor, sent: Encoded) -> Tensor:
        """Subtract what was sent, touching nothing else."""
        return self.rows.subtract(target, sent)
