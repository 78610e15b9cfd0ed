"""Rows of which little is sent, whoever chose it."""

from __future__ import annotations

import torch

from comm_compress.methods.shared.sparse_rows import SparseRows
from tests.comm_compress.methods.sparsifiers.samples import normal, positions, state


def test_sparse_rows_carry_what_another_method_chose() -> None:
    """The helper alone: exact values and positions of two rows, subtracted where they were sent."""
    rows, n = SparseRows(), 1000
    values, indices = normal(2, 8), torch.cat([positions(n, 8, 0), positions(n, 8, 1)])
    encoded = rows.encode(values, indices, n, state())
    dense = torch.zeros(2, n).scatter_(1, indices.long(), values)
    assert torch.equal(rows.decode(encoded), dense)
    assert torch.equal(rows.sum_into(encoded, torch.empty(n)), dense[0] + dense[1])
    target = normal(2, n, 5)
    expected = torch.where(dense != 0, 0, target)
    assert torch.equal(rows.subtract(target, encoded), expected)
