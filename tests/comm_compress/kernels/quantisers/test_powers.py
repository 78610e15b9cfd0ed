"""Powers of two: the CPU's kernels give the reference's bits."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from comm_compress.kernels.quantisers.powers import cpu as powers_cpu, reference as powers_reference
from tests.comm_compress.quantised import (
    DECAYS,
    KEYS,
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
    key=st.none() | KEYS,
    window=st.booleans(),
    fed_back=st.booleans(),
    waiting=WAITING,
    decay=DECAYS,
)
def test_powers_of_two_are_the_references(
    rows: Tensor,
    dtype: torch.dtype,
    key: tuple[int, int] | None,
    window: bool,
    fed_back: bool,
    waiting: torch.dtype | None,
    decay: float,
) -> None:
    rows = rows.to(dtype)
    num_rows, n = rows.shape
    if n == 0:
        return
    results = []
    for home in (powers_cpu, powers_reference):
        wire = torch.full((num_rows, n + -(-n // 8) + 3), 7, dtype=torch.uint8)  # rows of a message lie apart
        first = -(-n // powers_reference.POWER_BLOCK) if window else n
        fields = (wire[:, :first], wire[:, first : first + (n if window else -(-n // 8))])
        encode, decode, decode_sum = home.encode, home.decode, home.decode_sum
        if window:
            encode, decode, decode_sum = home.encode_window, home.decode_window, home.decode_window_sum
        residual = residual_for(rows, waiting, decay) if fed_back else None
        encode(rows, key, *fields, residual)
        assert (wire[:, -3:] == 7).all()
        decoded, narrow, total = torch.empty(num_rows, n), torch.empty(num_rows, n, dtype=dtype), torch.empty(n)
        decode(*fields, decoded)
        decode(*fields, narrow)
        decode_sum(*fields, total)
        results.append((wire.float(), decoded, narrow, total, residual.new if residual else total))
    for ours, theirs in zip(*results, strict=True):
        assert same(ours, theirs)
