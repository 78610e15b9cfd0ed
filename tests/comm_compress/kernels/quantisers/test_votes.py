"""Votes of signs: the CPU's kernels give the reference's bits."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from comm_compress.kernels.quantisers.votes import cpu as votes_cpu, reference as votes_reference
from tests.comm_compress.quantised import GROUPS, KEYS, NARROW_ROWS, rows_with_specials, same, some


@some
@given(rows=rows_with_specials(3000), dtype=NARROW_ROWS, group=GROUPS, key=KEYS, sparse=st.booleans())
def test_votes_are_the_references(
    rows: Tensor, dtype: torch.dtype, group: int, key: tuple[int, int], sparse: bool
) -> None:
    rows = rows.to(dtype)
    if sparse:
        rows[:, : rows.shape[1] // 2] = 0
    num_rows, n = rows.shape
    if n == 0:
        return
    results = []
    for home in (votes_cpu, votes_reference):
        marks = torch.full((num_rows, -(-n // group)), 7, dtype=torch.uint8)
        bits = torch.full((num_rows, -(-n // 8) + 3), 7, dtype=torch.uint8)
        home.encode(rows, group, key, marks, bits[:, :-3])
        assert (bits[:, -3:] == 7).all()
        decoded, narrow, total = torch.empty(num_rows, n), torch.empty(num_rows, n, dtype=dtype), torch.empty(n)
        home.decode(marks, bits[:, :-3], group, decoded)
        home.decode(marks, bits[:, :-3], group, narrow)
        home.majority(marks, bits[:, :-3], group, total)
        results.append((marks.float(), bits.float(), decoded, narrow, total))
    for ours, theirs in zip(*results, strict=True):
        assert same(ours, theirs)
