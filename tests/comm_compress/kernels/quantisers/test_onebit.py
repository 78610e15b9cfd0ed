"""Means of positive and negative elements: the CPU's kernels give the reference's bits."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from comm_compress.kernels.quantisers.onebit import cpu as onebit_cpu, reference as onebit_reference
from tests.comm_compress.quantised import (
    DECAYS,
    GROUPS,
    NARROW_ROWS,
    WAITING,
    residual_for,
    rows_with_specials,
    same,
    some,
)


@some
@given(
    rows=rows_with_specials(3000),
    dtype=NARROW_ROWS,
    group=GROUPS,
    fed_back=st.booleans(),
    waiting=WAITING,
    decay=DECAYS,
)
def test_means_are_the_references(
    rows: Tensor, dtype: torch.dtype, group: int, fed_back: bool, waiting: torch.dtype | None, decay: float
) -> None:
    rows = rows.to(dtype)
    num_rows, n = rows.shape
    if n == 0:
        return
    results = []
    for home in (onebit_cpu, onebit_reference):
        above, below = torch.full((2, num_rows, -(-n // group)), 7.0)
        bits = torch.full((num_rows, -(-n // 8) + 3), 7, dtype=torch.uint8)  # rows of a message lie apart
        residual = residual_for(rows, waiting, decay) if fed_back else None
        home.encode(rows, group, above, below, bits[:, :-3], residual)
        assert (bits[:, -3:] == 7).all()
        decoded, narrow, total = torch.empty(num_rows, n), torch.empty(num_rows, n, dtype=dtype), torch.empty(n)
        home.decode(above, below, bits[:, :-3], group, decoded)
        home.decode(above, below, bits[:, :-3], group, narrow)
        home.decode_sum(above, below, bits[:, :-3], group, total)
        results.append((above, below, bits.float(), decoded, narrow, total, residual.new if residual else total))
    for ours, theirs in zip(*results, strict=True):
        assert same(ours, theirs)
