"""Bytes by kind, layouts and ragged rows, by hand-made examples."""

from __future__ import annotations

import torch

from comm_compress.core.encoded import ByteCount, Encoded, Field, Layout, RaggedRow, size_of


def test_byte_counts_add_and_multiply_kind_by_kind() -> None:
    count = ByteCount(values=5, indices=3, metadata=2)
    assert count.total == 10
    assert count.times(4) == ByteCount(20, 12, 8)
    assert count + ByteCount(1, 10, 100) == ByteCount(6, 13, 102)
    assert ByteCount() == ByteCount(0, 0, 0)


def test_fields_lie_at_multiples_of_their_size_and_gaps_are_metadata() -> None:
    layout = Layout(
        Field("codes", torch.uint8, 5, "values"),
        Field("scales", torch.float32, 2, "metadata"),
        Field("places", torch.int16, 3, "indices"),
        Field("none", torch.float64, 0, "values"),
    )
    assert layout.offsets == {"codes": 0, "scales": 8, "places": 16, "none": 24}
    assert layout.row_bytes == 24, "the widest field that is there has 4 bytes"
    assert layout.padding == 3 + 2
    assert layout.byte_count == ByteCount(values=5, indices=6, metadata=8 + 5)


def test_rows_of_bytes_are_as_long_as_they_are() -> None:
    codes, nothing = Field("codes", torch.uint8, 5, "values"), Field("none", torch.float64, 0, "values")
    assert Layout(codes).row_bytes == 5
    assert Layout(nothing, codes).row_bytes == 5, "nothing of eight bytes does not make the row a multiple of eight"


def test_equal_values_give_equal_bytes_whatever_lay_in_the_padding() -> None:
    layout = Layout(Field("codes", torch.uint8, 1, "values"), Field("scale", torch.float32, 1, "metadata"))
    dirty = torch.full((2, layout.row_bytes), 255, dtype=torch.uint8)
    encoded = Encoded.within(dirty, layout, 1)
    encoded["codes"][:] = 7
    encoded["scale"][:] = 0.0
    assert encoded.row(1).tolist() == [7, 0, 0, 0, 0, 0, 0, 0]
    assert encoded.num_rows == 2
    assert encoded.byte_count(1) == ByteCount(values=1, metadata=7)
    full = Layout(Field("codes", torch.uint8, 4, "values"))
    kept = Encoded.within(torch.full((1, 4), 9, dtype=torch.uint8), full, 4)
    assert kept["codes"].tolist() == [[9, 9, 9, 9]], "memory without gaps is left as it is"


def test_an_empty_field_is_an_empty_view() -> None:
    layout = Layout(Field("scale", torch.float32, 1, "metadata"), Field("codes", torch.int16, 0, "values"))
    encoded = Encoded.empty(3, 0, layout, torch.device("cpu"))
    assert encoded["codes"].shape == (3, 0)
    assert encoded["codes"].dtype == torch.int16


def test_ragged_rows_are_their_parts_and_nothing_beyond() -> None:
    a, b = torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8)
    assert size_of([a, b]) == 3

    def scratch(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.full(shape, 255, dtype=dtype, device=device)

    counts = [ByteCount(values=2, indices=1), ByteCount(metadata=1)]
    rows = [RaggedRow([a, b], counts[0]), RaggedRow([b], counts[1])]
    encoded = Encoded.ragged(rows, 5, scratch)
    assert encoded.lengths == (3, 1)
    assert [encoded.row(r).tolist() for r in range(2)] == [[1, 2, 3], [3]]
    assert encoded.buffer[1].tolist() == [3, 0, 0]
    assert [encoded.byte_count(r) for r in range(2)] == counts
    assert encoded.scratch is scratch
    assert Encoded.ragged([RaggedRow([a])], 2).counts is None, "a receiver has none"


def test_received_bytes_take_the_place_of_sent_ones() -> None:
    layout = Layout(Field("codes", torch.uint8, 2, "values"))
    sent = Encoded.empty(1, 2, layout, torch.device("cpu"))
    received = sent.replaced(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8))
    assert (received.num_rows, received.n, received.layout) == (2, 2, layout)
    assert received["codes"].tolist() == [[1, 2], [3, 4]]
