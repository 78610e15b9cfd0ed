"""Rotations of blocks in vectors: the reference's bits, and the matrix's numbers."""

from __future__ import annotations

import functools
import math

import numpy as np
from hypothesis import given
from torch import Tensor

from comm_compress.kernels.quantisers.blocks import hadamard as hadamard_cpu, reference as blocks_reference
from tests.comm_compress.quantised import rows_with_specials, same, some


@some
@given(rows=rows_with_specials(200))
def test_rotation_is_the_references_and_the_matrix(rows: Tensor) -> None:
    got = rows.clone()
    for row in got:
        hadamard_cpu.rotate(row.numpy())
    assert same(got, blocks_reference.rotated(rows))
    matrix = functools.reduce(np.kron, [np.array([[1.0, 1.0], [1.0, -1.0]])] * 5) / math.sqrt(32)
    whole = rows.shape[1] // 32 * 32
    assert same(got[:, whole:], rows[:, whole:])
    for start in range(0, whole, 32):
        x = rows[:, start : start + 32].double().numpy()
        if np.isfinite(x).all() and np.abs(x).max(initial=0) < 1e37:
            np.testing.assert_allclose(got[:, start : start + 32], x @ matrix, atol=1e-6 * np.abs(x).max() + 1e-43)
